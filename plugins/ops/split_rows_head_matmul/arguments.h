// Arguments of SplitRowsHeadMatMul's kernels, and how a call fills them.
#pragma once

#include "ops/head_matmul/arguments.h"

namespace tightbeam {

template <class Float>
using SplitRowsHeadMatMulArguments = HeadMatMulArguments<Float>;

template <class Float>
SplitRowsHeadMatMulArguments<Float> split_rows_head_matmul_arguments(const Call& call) {
  SplitRowsHeadMatMulArguments<Float> arguments = head_matmul_arguments<Float>(call);
  arguments.digits = 2;
  return arguments;
}

// The CPU kernel. Tensors of 16 bits are widened before it and rounded after it.
inline void split_rows_head_matmul(const SplitRowsHeadMatMulArguments<float>& arguments, const Parallel& parallel) {
  head_matmul(arguments, parallel);
}

}  // namespace tightbeam
