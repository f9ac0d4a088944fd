// Arguments of SplitRowsMatMul's kernels, and how a call fills them.
#pragma once

#include "ops/dynamic_quantize_matmul/arguments.h"

namespace tightbeam {

template <class Float>
using SplitRowsMatMulArguments = DynamicQuantizeMatMulArguments<Float>;

template <class Float>
SplitRowsMatMulArguments<Float> split_rows_matmul_arguments(const Call& call) {
  SplitRowsMatMulArguments<Float> arguments = dynamic_quantize_matmul_arguments<Float>(call);
  arguments.product.digits = 2;
  return arguments;
}

// The CPU kernel. Tensors of 16 bits are widened before it and rounded after it.
inline void split_rows_matmul(const SplitRowsMatMulArguments<float>& arguments, const Parallel& parallel) {
  dynamic_quantize_matmul(arguments, parallel);
}

}  // namespace tightbeam
