// An operator's table for every runtime: names, types and shapes in letters, and the checks that follow from them.
//
// The tables are generated from the declarations in plugins/ops/<op>/__init__.py (plugins/schema.py) when the libraries
// are built. The size of a letter follows from a shape of a call (in a product or a sum, once the other letters are
// known), and every other shape with the letter must agree. A size is at least 1 unless the letter is in `may_be_zero`.
#pragma once

#include <climits>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace tightbeam {

// Float stands for a node's float type: float32, float16 or bfloat16.
enum class Element { Float, float32, int8, uint8, int32, int64, boolean };

// A product of a number and letters, which are indices in Operator::letters. A dimension is a sum of such terms.
struct Term {
  int64_t factor = 1;
  std::vector<int> letters;
};
using Dimension = std::vector<Term>;

struct Input {
  Input(const char* name, Element type, const char* shape) : name(name), type(type), shape(shape) {}

  Input optional() const {
    Input input = *this;
    input.is_optional = true;
    return input;
  }

  const char* name;
  Element type;
  const char* shape;
  bool is_optional = false;
  bool is_scalar = false;        // one number, of shape [] or [1]; stays in CPU memory under every provider
  const char* letter = nullptr;  // of a scalar whose value is a size: the letter of that size
  const char* most = nullptr;    // and the letter whose size bounds it
  std::vector<Dimension> dimensions;
};

struct Scalar : Input {
  Scalar(const char* name, Element type) : Input(name, type, "") { is_scalar = true; }

  // An int64 whose value is the size of a letter in output shapes, and at most another letter's size.
  Scalar gives(const char* letter, const char* most) const {
    Scalar scalar = *this;
    scalar.letter = letter;
    scalar.most = most;
    return scalar;
  }
};

struct Output {
  Output(const char* name, Element type, const char* shape) : name(name), type(type), shape(shape) {}

  Output optional() const {
    Output output = *this;
    output.is_optional = true;
    return output;
  }

  // The output may share the input's memory. The kernel accepts shared and separate memory.
  Output reuses(const char* input) const {
    Output output = *this;
    output.input = input;
    return output;
  }

  // The output is a new version of the input: written in place if both share memory, else copied first.
  Output updates(const char* input) const {
    Output output = reuses(input);
    output.starts_as_copy = true;
    return output;
  }

  const char* name;
  Element type;
  const char* shape;
  bool is_optional = false;
  const char* input = nullptr;
  bool starts_as_copy = false;
  std::vector<Dimension> dimensions;
};

struct Attribute {
  static Attribute required_float(const char* name) { return {name, false, true, 0}; }
  static Attribute optional_float(const char* name, double value) { return {name, false, false, value}; }
  static Attribute required_int(const char* name) { return {name, true, true, 0}; }
  static Attribute optional_int(const char* name, int64_t value) {
    return {name, true, false, static_cast<double>(value)};
  }

  const char* name;
  bool is_int;
  bool is_required;
  double value;
};

// An input as far as it is known: all of it at run time, and perhaps only some dimensions while a model is loaded.
struct KnownShape {
  bool present = false;
  bool has_rank = false;
  std::vector<int64_t> sizes;      // -1: unknown
  const int64_t* value = nullptr;  // of a scalar that gives a size, if it is known
};

struct Operator {
  Operator(const char* name, std::vector<Input> inputs, std::vector<Output> outputs, std::vector<Attribute> attributes,
           const char* may_be_zero = "");

  // Finds the size of every letter; -1 if it is unknown. Raises OperatorError if shapes contradict one another.
  std::vector<int64_t> sizes(const std::vector<KnownShape>& inputs) const;

  // The shape of an output; -1 for unknown sizes.
  std::vector<int64_t> output_shape(size_t output, const std::vector<int64_t>& sizes) const;

  // The input and its dimension that are written exactly like a dimension of an output; {-1, -1} if none is.
  std::pair<int, int> same_dimension(size_t output, size_t dimension) const;

  // True if an input has the node's float type.
  bool has_float_type() const;

  int letter(const char* name) const;
  int input(const char* name) const;
  int output(const char* name) const;

  const char* name;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Attribute> attributes;
  std::vector<std::string> letters;
  std::vector<bool> may_be_zero;

 private:
  int add_letter(const std::string& word);
  std::vector<Dimension> parse(const char* shape);
  bool solve(const Input& input, const KnownShape& shape, size_t dimension, std::vector<int64_t>& sizes) const;
  void verify(const Input& input, const KnownShape& shape, const std::vector<int64_t>& sizes) const;
};

// A call of an operator, from which its arguments are filled by name.
struct Call {
  explicit Call(const Operator& op) : op(op) {}

  [[noreturn]] void fail(const std::string& what) const { throw OperatorError{std::string(op.name) + ": " + what}; }

  // A letter's size as an int; 0 if only missing inputs have the letter.
  int size(const char* letter) const {
    const int64_t size = sizes[op.letter(letter)];
    if (size > INT_MAX) fail(std::string(letter) + " is " + std::to_string(size) + ", more than an int holds");
    return size < 0 ? 0 : static_cast<int>(size);
  }

  bool has(const char* input) const { return inputs[op.input(input)].present; }

  // Null if an optional input is missing.
  template <class T>
  const T* input(const char* name) const {
    return inputs[op.input(name)].as<T>();
  }

  // Null if an optional output is not wanted.
  template <class T>
  T* output(const char* name) const {
    return static_cast<T*>(outputs[op.output(name)]);
  }

  template <class T>
  T scalar(const char* name) const {
    return *input<T>(name);
  }

  float float_attribute(const char* name) const { return static_cast<float>(attribute(name)); }

  int int_attribute(const char* name) const {
    const double value = attribute(name);
    if (value < INT_MIN || value > INT_MAX) fail("attribute " + std::string(name) + " does not fit an int");
    return static_cast<int>(value);
  }

  double attribute(const char* name) const {
    for (size_t i = 0; i < op.attributes.size(); ++i)
      if (std::strcmp(op.attributes[i].name, name) == 0) return attributes[i];
    fail("has no attribute " + std::string(name));
  }

  const Operator& op;
  bool scalars_on_device = false;  // then `scalar` must not be called; scalars that give a size are in `sizes`
  std::vector<Tensor> inputs;
  std::vector<void*> outputs;
  std::vector<double> attributes;
  std::vector<int64_t> sizes;
};

}  // namespace tightbeam
