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
  const long low_digits = static_cast<long>(a.beside) * a.X;
  const float steps = a.digits == 2 ? FINEST : 127;
  parallel.for_each_row(a.R, std::max(1, NUMBERS / a.X), [&](long row) {
    const float* numbers = a.rows + row * a.X;
    signed char* high = a.quantized + row / a.beside * a.digits * low_digits + row % a.beside * a.X;
    const float largest = largest_of(kernels.largest(numbers, a.X));
    if (largest != largest)
      for (int digit = 0; digit < a.digits; ++digit) std::memset(high + digit * low_digits, 0, a.X);
    else if (a.digits == 2)
      kernels.split(numbers, a.X, steps / largest, high, high + low_digits);
    else
      kernels.round(numbers, a.X, steps / largest, high);
    a.scale[row] = largest / steps;
  });
}

}  // namespace tightbeam
