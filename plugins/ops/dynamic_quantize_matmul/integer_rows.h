// The rows of a product as integers.
#pragma once

#include <memory>

#include "kernels/cpu/parallel.h"
#include "ops/quantize_rows/arguments.h"
#include "ops/quantized_matmul/arguments.h"

namespace tightbeam {

// Quantises `rows` [R, 4 groups], and lets `product` read them for as long as this exists.
class IntegerRows {
 public:
  IntegerRows(const float* rows, QuantizedMatMulArguments<float>& product, const Parallel& parallel)
      : integers_(new signed char[static_cast<size_t>(product.R) * product.digits * GROUP * product.groups]),
        scale_(new float[static_cast<size_t>(product.R) * product.blocks]) {
    quantize_rows({product.R * product.blocks, GROUP * product.groups / product.blocks, product.digits, product.blocks,
                   rows, integers_.get(), scale_.get()},
                  parallel);
    product.rows = integers_.get();
    product.row_scale = scale_.get();
  }

 private:
  const std::unique_ptr<signed char[]> integers_;
  const std::unique_ptr<float[]> scale_;
};

}  // namespace tightbeam
