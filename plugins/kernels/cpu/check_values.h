// Checks of the values of inputs before a CPU kernel runs; shapes are checked by the table.
#pragma once

#include <string>

#include "kernels/tensor.h"

namespace tightbeam {

[[noreturn]] inline void fail(const char* op, const std::string& what) {
  throw OperatorError{std::string(op) + ": " + what};
}

// lengths [B], each 1..T.
inline void check_lengths(const char* op, const int* lengths, int B, int T, const char* capacity) {
  for (int b = 0; b < B; ++b)
    if (lengths[b] < 1 || lengths[b] > T)
      fail(op, "lengths[" + std::to_string(b) + "] is " + std::to_string(lengths[b]) + ", expected 1 to " +
                   std::to_string(T) + ", " + capacity);
}

}  // namespace tightbeam
