#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/quantize_rows/arguments.h"

namespace tightbeam {
namespace {

constexpr unsigned INFINITE = 0x7F800000;
constexpr float SMALLEST = 1e-30f;  // of the largest magnitudes: 127 over it is no infinity
constexpr int NUMBERS = 1 << 15;    // of an item: about ten microseconds

float float_of(unsigned bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

}  // namespace

void quantize_rows(const QuantizeRowsArguments<float>& a, const Parallel& parallel) {
  const Quantized& kernels = quantized();
  const int rows = std::max(1, NUMBERS / a.X);
  parallel.for_each((a.R + rows - 1) / rows, [&](size_t item) {
    const long begin = static_cast<long>(item) * rows, end = std::min<long>(a.R, begin + rows);
    for (long row = begin; row < end; ++row) {
      const float* numbers = a.rows + row * a.X;
      signed char* quantized = a.quantized + row * a.X;
      const unsigned largest = kernels.largest(numbers, a.X);
      if (largest >= INFINITE) {
        std::memset(quantized, 0, a.X);
        a.scale[row] = __builtin_nanf("");
        continue;
      }
      const float bounded = std::max(float_of(largest), SMALLEST);
      kernels.round(numbers, a.X, 127 / bounded, quantized);
      a.scale[row] = bounded / 127;
    }
  });
}

}  // namespace tightbeam
