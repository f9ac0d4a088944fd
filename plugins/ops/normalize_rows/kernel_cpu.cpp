#include <algorithm>

#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel.h"
#include "ops/normalize_rows/arguments.h"

namespace tightbeam {
namespace {

constexpr int NUMBERS = 1 << 15;  // of an item: about ten microseconds

}  // namespace

void normalize_rows(const NormalizeRowsArguments<float>& a, const Parallel& parallel) {
  const Math& kernels = math();
  const int rows = std::max(1, NUMBERS / a.X);
  parallel.for_each((a.R + rows - 1) / rows, [&](size_t item) {
    const long begin = static_cast<long>(item) * rows, end = std::min<long>(a.R, begin + rows);
    for (long row = begin; row < end; ++row)
      kernels.normalize(a.rows + row * a.X, a.X, a.weight, a.bias, a.epsilon, a.centred, a.normalized + row * a.X);
  });
}

}  // namespace tightbeam
