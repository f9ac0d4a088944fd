#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/quantize_rows/arguments.h"

namespace tightbeam {
namespace {

constexpr int NUMBERS = 1 << 15;  // of an item, which take about ten microseconds

}  // namespace

void quantize_rows(const QuantizeRowsArguments<float>& a, const Parallel& parallel) {
  const Quantized& kernels = quantized();
  parallel.for_each_row(a.R, std::max(1, NUMBERS / a.X), [&](long row) {
    const float* numbers = a.rows + row * a.X;
    signed char* quantized = a.quantized + row * a.X;
    const float largest = largest_of(kernels.largest(numbers, a.X));
    if (largest == largest)
      kernels.round(numbers, a.X, 127 / largest, quantized);
    else
      std::memset(quantized, 0, a.X);
    a.scale[row] = largest / 127;
  });
}

}  // namespace tightbeam
