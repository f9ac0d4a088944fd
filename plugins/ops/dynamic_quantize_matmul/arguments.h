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

// The same of an operator that makes logits [B M, vocabulary] in one block, without an addend.
inline DynamicQuantizeMatMulArguments<float> logits_arguments(const Call& call) {
  check_tiles(call, "vocabulary");
  check_groups(call);
  QuantizedMatMulArguments<float> product{};
  product.R = call.size("B") * call.size("M");
  product.Y = call.size("vocabulary");
  product.groups = call.size("groups");
  product.blocks = 1;
  product.digits = call.int_attribute("split") != 0 ? 2 : 1;
  product.row_step = long{GROUP} * product.groups;
  product.row_scale_step = 1;
  product.products_step = product.Y;
  product.weights = call.input<unsigned char>("weights");
  product.scale = call.input<float>("scale");
  product.bias = call.input<float>("bias");
  product.products = call.output<float>("logits");
  return {call.input<float>("rows"), product};
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it.
void dynamic_quantize_matmul(const DynamicQuantizeMatMulArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
