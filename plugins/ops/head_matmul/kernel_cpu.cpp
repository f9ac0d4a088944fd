#include <memory>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "ops/head_matmul/arguments.h"
#include "ops/quantize_rows/arguments.h"

namespace tightbeam {

void head_matmul(const HeadMatMulArguments<float>& a, const Parallel& parallel) {
  const size_t width = static_cast<size_t>(a.groups) * GROUP, count = static_cast<size_t>(a.R) * a.H;
  const std::unique_ptr<signed char[]> rows(new signed char[count * a.digits * width]);
  const std::unique_ptr<float[]> scale(new float[count * a.blocks]);
  quantize_rows({a.R * a.H * a.blocks, static_cast<int>(width) / a.blocks, a.digits, a.H * a.blocks, a.rows, rows.get(),
                 scale.get()},
                parallel);

  const std::vector<float> no_bias(a.Y);
  const Sequential alone;
  const bool one = a.H == 1;  // then the threads share its columns; else they share the heads
  parallel.for_each(static_cast<size_t>(a.H), [&](size_t head) {
    QuantizedMatMulArguments<float> product{};
    product.R = a.R;
    product.Y = a.Y;
    product.groups = a.groups;
    product.blocks = a.blocks;
    product.digits = a.digits;
    product.row_step = static_cast<long>(a.H * width);
    product.row_scale_step = static_cast<long>(a.H) * a.blocks;
    product.products_step = static_cast<long>(a.H) * a.Y;
    product.rows = rows.get() + head * width;
    product.row_scale = scale.get() + head * a.blocks;
    product.weights = a.weights + head * a.tiles * a.groups * TILE_STEP;
    product.scale = a.scale + head * a.blocks * a.Y;
    product.bias = no_bias.data();
    product.products = a.products + head * a.Y;
    quantized_matmul(product, one ? parallel : alone);
  });
}

}  // namespace tightbeam
