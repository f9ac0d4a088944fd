// A tensor as the adapters hand it to an operator: name, type, shape, data. Nothing of any runtime.
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
  const void* data = nullptr;  // null, and an empty shape, where an optional input is missing
  bool present = false;

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// Raised by an operator's checks and kernels; the message names operator, tensor, what was expected and what came.
struct OperatorError {
  std::string message;
};

}  // namespace tightbeam
