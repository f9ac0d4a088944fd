// Arguments of DynamicQuantizeMatMul's kernels, and how a call fills them.
#pragma once

#include "ops/quantized_matmul/arguments.h"

namespace tightbeam {

template <class Float>
struct DynamicQuantizeMatMulArguments {
  const Float* rows;                        // [R, 4 groups]
  QuantizedMatMulArguments<Float> product;  // without rows and row scales, which the kernel makes
};

template <class Float>
DynamicQuantizeMatMulArguments<Float> dynamic_quantize_matmul_arguments(const Call& call) {
  return {call.input<Float>("rows"), quantized_matrix_arguments<Float>(call)};
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it.
void dynamic_quantize_matmul(const DynamicQuantizeMatMulArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
