#include "kernels/cpu/parallel.h"
#include "ops/dynamic_quantize_matmul/arguments.h"
#include "ops/dynamic_quantize_matmul/integer_rows.h"

namespace tightbeam {

void dynamic_quantize_matmul(const DynamicQuantizeMatMulArguments<float>& a, const Parallel& parallel) {
  QuantizedMatMulArguments<float> product = a.product;
  const IntegerRows rows(a.rows, product, parallel);
  quantized_matmul(product, parallel);
}

}  // namespace tightbeam
