// Checks of input values that a CPU kernel makes before it runs. The operator's table checks shapes.
#pragma once

#include <string>

#include "kernels/tensor.h"

namespace tightbeam {

[[noreturn]] inline void fail(const char* op, const std::string& what) {
  throw OperatorError{std::string(op) + ": " + what};
}

// Checks that each of lengths [B] is 1..T. `capacity` says in the error what T is.
inline void check_lengths(const char* op, const int* lengths, int B, int T, const char* capacity) {
  for (int b = 0; b < B; ++b)
    if (lengths[b] < 1 || lengths[b] > T)
      fail(op, "lengths[" + std::to_string(b) + "] is " + std::to_string(lengths[b]) + ", expected 1 to " +
                   std::to_string(T) + ", " + capacity);
}

// Checks that each of `count` tokens is lowest..vocabulary-1. `row` is their row in the tensor; -1 if it has no rows.
inline void check_tokens(const char* op, const char* tensor, long row, const long long* tokens, long count,
                         long long lowest, long long vocabulary) {
  for (long i = 0; i < count; ++i)
    if (tokens[i] < lowest || tokens[i] >= vocabulary)
      fail(op, std::string(tensor) + "[" + (row < 0 ? "" : std::to_string(row) + ", ") + std::to_string(i) + "] is " +
                   std::to_string(tokens[i]) + ", expected a token in " + std::to_string(lowest) + ".." +
                   std::to_string(vocabulary - 1));
}

}  // namespace tightbeam
