#include "kernels/operator.h"

#include <cctype>
#include <sstream>
#include <utility>

namespace tightbeam {
namespace {

std::string shape_text(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0) text += ", ";
    text += sizes[i] < 0 ? "?" : std::to_string(sizes[i]);
  }
  return text + "]";
}

// The size of a dimension; -1 if one of its letters is unknown.
int64_t evaluate(const Dimension& dimension, const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const Term& term : dimension) {
    int64_t product = term.factor;
    for (int letter : term.letters) {
      if (sizes[letter] < 0) return -1;
      product *= sizes[letter];
    }
    sum += product;
  }
  return sum;
}

std::vector<std::string> words(const char* text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

Operator::Operator(const char* name, std::vector<Input> inputs, std::vector<Output> outputs,
                   std::vector<Attribute> attributes, const char* zeros)
    : name(name), inputs(std::move(inputs)), outputs(std::move(outputs)), attributes(std::move(attributes)) {
  for (Input& input : this->inputs) {
    input.dimensions = parse(input.shape);
    if (input.letter != nullptr) add_letter(input.letter);
  }
  for (Output& output : this->outputs) output.dimensions = parse(output.shape);
  may_be_zero.resize(letters.size());
  for (const std::string& word : words(zeros)) may_be_zero[letter(word.c_str())] = true;
}

int Operator::add_letter(const std::string& word) {
  size_t index = 0;
  while (index < letters.size() && letters[index] != word) ++index;
  if (index == letters.size()) letters.push_back(word);
  return static_cast<int>(index);
}

std::vector<Dimension> Operator::parse(const char* shape) {
  std::vector<Dimension> dimensions;
  std::istringstream stream(shape);
  for (std::string part; std::getline(stream, part, ',');) {
    Dimension dimension(1);
    for (const std::string& word : words(part.c_str())) {
      if (word == "+") {
        dimension.emplace_back();
      } else if (std::isdigit(static_cast<unsigned char>(word[0]))) {
        dimension.back().factor *= std::stoll(word);
      } else {
        dimension.back().letters.push_back(add_letter(word));
      }
    }
    dimensions.push_back(dimension);
  }
  return dimensions;
}

bool Operator::has_float_type() const {
  for (const Input& input : inputs)
    if (input.type == Element::Float) return true;
  return false;
}

int Operator::letter(const char* name) const {
  for (size_t i = 0; i < letters.size(); ++i)
    if (letters[i] == name) return static_cast<int>(i);
  throw OperatorError{std::string(this->name) + ": no shape of its table has a letter " + name};
}

int Operator::input(const char* name) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (std::strcmp(inputs[i].name, name) == 0) return static_cast<int>(i);
  throw OperatorError{std::string(this->name) + ": its table has no input " + name};
}

int Operator::output(const char* name) const {
  for (size_t i = 0; i < outputs.size(); ++i)
    if (std::strcmp(outputs[i].name, name) == 0) return static_cast<int>(i);
  throw OperatorError{std::string(this->name) + ": its table has no output " + name};
}

// Finds the unknown letter of a dimension if it has exactly one. Returns true if it was found.
bool Operator::solve(const Input& input, const KnownShape& shape, size_t index, std::vector<int64_t>& sizes) const {
  int unknown = -1;
  for (const Term& term : input.dimensions[index]) {
    for (int letter : term.letters) {
      if (sizes[letter] >= 0 || letter == unknown) continue;
      if (unknown >= 0) return false;
      unknown = letter;
    }
  }
  if (unknown < 0) return false;
  // The dimension is linear in the letter, which is (size - dimension at 0) / (dimension at 1 - dimension at 0).
  sizes[unknown] = 0;
  const int64_t rest = evaluate(input.dimensions[index], sizes);
  sizes[unknown] = 1;
  const int64_t factor = evaluate(input.dimensions[index], sizes) - rest;
  sizes[unknown] = -1;
  const int64_t share = shape.sizes[index] - rest;
  if (factor <= 0) return false;
  if (share < 0 || share % factor != 0) verify(input, shape, sizes);
  if (share < 0 || share % factor != 0)
    throw OperatorError{std::string(name) + ": " + input.name + " is " + shape_text(shape.sizes) + ", expected [" +
                        input.shape + "]: no size " + letters[unknown] + " gives dimension " + std::to_string(index)};
  sizes[unknown] = share / factor;
  return true;
}

void Operator::verify(const Input& input, const KnownShape& shape, const std::vector<int64_t>& sizes) const {
  for (size_t i = 0; i < input.dimensions.size(); ++i) {
    const int64_t expected = evaluate(input.dimensions[i], sizes);
    if (expected < 0 || shape.sizes[i] < 0 || expected == shape.sizes[i]) continue;
    std::string known;
    for (const Term& term : input.dimensions[i])
      for (int letter : term.letters)
        if (const std::string text = letters[letter] + " = " + std::to_string(sizes[letter]);
            known.find(text) == std::string::npos)
          known += (known.empty() ? " with " : ", ") + text;
    throw OperatorError{std::string(name) + ": " + input.name + " is " + shape_text(shape.sizes) + ", expected [" +
                        input.shape + "]" + known};
  }
}

std::vector<int64_t> Operator::sizes(const std::vector<KnownShape>& shapes) const {
  std::vector<int64_t> sizes(letters.size(), -1);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    if (!shapes[i].present || !shapes[i].has_rank) continue;
    if (input.is_scalar) {
      const std::vector<int64_t>& shape = shapes[i].sizes;
      if (shape.empty() || (shape.size() == 1 && (shape[0] == 1 || shape[0] < 0))) continue;
      throw OperatorError{std::string(name) + ": " + input.name + " is " + shape_text(shapes[i].sizes) +
                          ", expected one number, [] or [1]"};
    }
    if (shapes[i].sizes.size() != input.dimensions.size())
      throw OperatorError{std::string(name) + ": " + input.name + " is " + shape_text(shapes[i].sizes) +
                          ", expected [" + input.shape + "]"};
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!shapes[i].present || !shapes[i].has_rank) continue;
      for (size_t d = 0; d < inputs[i].dimensions.size(); ++d)
        if (shapes[i].sizes[d] >= 0 && solve(inputs[i], shapes[i], d, sizes)) progress = true;
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!shapes[i].present) continue;
    for (const Dimension& dimension : inputs[i].dimensions)
      for (const Term& term : dimension)
        for (int letter : term.letters)
          if (sizes[letter] == 0 && !may_be_zero[letter])
            throw OperatorError{std::string(name) + ": " + inputs[i].name + " is " + shape_text(shapes[i].sizes) +
                                ", expected [" + inputs[i].shape + "] with " + letters[letter] + " at least 1"};
  }
  for (size_t i = 0; i < inputs.size(); ++i)
    if (shapes[i].present && shapes[i].has_rank && !inputs[i].is_scalar) verify(inputs[i], shapes[i], sizes);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].letter == nullptr || shapes[i].value == nullptr) continue;
    const int64_t value = *shapes[i].value, most = sizes[letter(inputs[i].most)];
    if (value < 1 || value > most)
      throw OperatorError{std::string(name) + ": " + inputs[i].name + " is " + std::to_string(value) +
                          ", expected 1 to " + std::to_string(most)};
    sizes[letter(inputs[i].letter)] = value;
  }
  return sizes;
}

std::vector<int64_t> Operator::output_shape(size_t output, const std::vector<int64_t>& sizes) const {
  std::vector<int64_t> shape;
  for (const Dimension& dimension : outputs[output].dimensions) shape.push_back(evaluate(dimension, sizes));
  return shape;
}

std::pair<int, int> Operator::same_dimension(size_t output, size_t dimension) const {
  const auto same = [](const Dimension& a, const Dimension& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i].factor != b[i].factor || a[i].letters != b[i].letters) return false;
    return true;
  };
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t d = 0; d < inputs[i].dimensions.size(); ++d)
      if (same(inputs[i].dimensions[d], outputs[output].dimensions[dimension]))
        return {static_cast<int>(i), static_cast<int>(d)};
  return {-1, -1};
}

}  // namespace tightbeam
