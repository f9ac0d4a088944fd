#include <memory>

#include "kernels/cpu/parallel.h"
#include "ops/dynamic_quantize_matmul/arguments.h"
#include "ops/quantize_rows/arguments.h"

namespace tightbeam {

void dynamic_quantize_matmul(const DynamicQuantizeMatMulArguments<float>& a, const Parallel& parallel) {
  QuantizedMatMulArguments<float> product = a.product;
  const int width = product.groups * GROUP;
  const std::unique_ptr<signed char[]> rows(new signed char[static_cast<size_t>(product.R) * product.digits * width]);
  const std::unique_ptr<float[]> scale(new float[static_cast<size_t>(product.R) * product.blocks]);
  quantize_rows({product.R * product.blocks, width / product.blocks, product.digits, product.blocks, a.rows, rows.get(),
                 scale.get()},
                parallel);
  product.rows = rows.get();
  product.row_scale = scale.get();
  quantized_matmul(product, parallel);
}

}  // namespace tightbeam
