// Arguments of Int4MatMul's kernels, and how a call fills them.
#pragma once

#include "ops/dynamic_quantize_matmul/arguments.h"

namespace tightbeam {

template <class Float>
using Int4MatMulArguments = DynamicQuantizeMatMulArguments<Float>;

template <class Float>
Int4MatMulArguments<Float> int4_matmul_arguments(const Call& call) {
  Int4MatMulArguments<Float> arguments{call.input<Float>("rows"), {}};
  QuantizedMatMulArguments<Float>& product = arguments.product;
  product.groups = call.size("blocks") * INT4_GROUPS;
  product.blocks = 1;
  product.digits = 2;
  product.block_scale = call.input<unsigned char>("block_scale");
  set_product(call, product);
  return arguments;
}

// The CPU kernel. Tensors of 16 bits are widened before it and rounded after it.
inline void int4_matmul(const Int4MatMulArguments<float>& arguments, const Parallel& parallel) {
  dynamic_quantize_matmul(arguments, parallel);
}

}  // namespace tightbeam
