#include <algorithm>

#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel.h"
#include "ops/normalize_rows/arguments.h"

namespace tightbeam {
namespace {

constexpr int NUMBERS = 1 << 15;  // of an item, which take about ten microseconds

}  // namespace

void normalize_rows(const NormalizeRowsArguments<float>& a, const Parallel& parallel) {
  const Math& kernels = math();
  parallel.for_each_row(a.R, std::max(1, NUMBERS / a.X), [&](long row) {
    kernels.normalize(a.rows + row * a.X, a.X, a.weight, a.bias, a.epsilon, a.centred, a.normalized + row * a.X);
  });
}

}  // namespace tightbeam
