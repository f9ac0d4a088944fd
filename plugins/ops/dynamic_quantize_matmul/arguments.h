// Arguments of the kernels of DynamicQuantizeMatMul, and how they are filled from a call.
#pragma once

#include "ops/quantized_matmul/arguments.h"

namespace tightbeam {

template <class Float>
struct DynamicQuantizeMatMulArguments {
  const Float* rows;                        // [R, 4 groups]
  QuantizedMatMulArguments<Float> product;  // without its rows and their scales
};

template <class Float>
DynamicQuantizeMatMulArguments<Float> dynamic_quantize_matmul_arguments(const Call& call) {
  return {call.input<Float>("rows"), quantized_matrix_arguments<Float>(call)};
}

// The CPU kernel (kernel_cpu.cpp); 16-bit tensors are widened before and rounded after.
void dynamic_quantize_matmul(const DynamicQuantizeMatMulArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
