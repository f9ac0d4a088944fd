// A tensor as the adapters pass it to an operator, independent of any runtime: name, type, shape, data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tightbeam {

enum class Type { float32, float16, bfloat16, int8, uint8, int32, int64, boolean };

constexpr size_t bytes_of(Type type) {
  switch (type) {
    case Type::int64: return 8;
    case Type::float16:
    case Type::bfloat16: return 2;
    case Type::int8:
    case Type::uint8:
    case Type::boolean: return 1;
    default: return 4;
  }
}

struct Tensor {
  const char* name = "";
  Type type = Type::float32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // null, with an empty shape, if an optional input is missing
  bool present = false;

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// The exception of operators' checks and kernels. Its message names operator and tensor, what was found and expected.
struct OperatorError {
  std::string message;
};

}  // namespace tightbeam
