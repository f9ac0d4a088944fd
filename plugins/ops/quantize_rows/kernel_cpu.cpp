#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/quantize_rows/arguments.h"

namespace tightbeam {
namespace {

constexpr int NUMBERS = 1 << 15;  // of an item: about ten microseconds

}  // namespace

void quantize_rows(const QuantizeRowsArguments<float>& a, const Parallel& parallel) {
  const Quantized& kernels = quantized();
  const int rows = std::max(1, NUMBERS / a.X);
  parallel.for_each((a.R + rows - 1) / rows, [&](size_t item) {
    const long begin = static_cast<long>(item) * rows, end = std::min<long>(a.R, begin + rows);
    for (long row = begin; row < end; ++row) {
      const float* numbers = a.rows + row * a.X;
      signed char* quantized = a.quantized + row * a.X;
      const float largest = largest_of(kernels.largest(numbers, a.X));
      if (largest != largest) {
        std::memset(quantized, 0, a.X);
        a.scale[row] = largest;
        continue;
      }
      kernels.round(numbers, a.X, 127 / largest, quantized);
      a.scale[row] = largest / 127;
    }
  });
}

}  // namespace tightbeam
