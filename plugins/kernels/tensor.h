// A tensor as the adapters hand it to an operator: name, type, shape, data. Nothing of any runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tightbeam {

enum class Type { float32, float16, bfloat16, int32, int64, boolean };

constexpr size_t bytes_of(Type type) {
  return type == Type::int64 ? 8 : type == Type::boolean ? 1 : type == Type::float16 || type == Type::bfloat16 ? 2 : 4;
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
