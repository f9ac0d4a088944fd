#include <algorithm>

#include "kernels/cpu/check_values.h"
#include "kernels/cpu/parallel.h"
#include "ops/tiled_gather/arguments.h"

namespace tightbeam {
namespace {

constexpr int NUMBERS = 1 << 13;  // of an item, each in a line of its own

}  // namespace

void tiled_gather(const TiledGatherArguments<float>& a, const Parallel& parallel) {
  const long long vocabulary = static_cast<long long>(a.tiles) * TILE_COLUMNS;
  for (int row = 0; row < a.R; ++row)
    if (a.tokens[row] < 0 || a.tokens[row] >= vocabulary)
      fail("TiledGather", "tokens[" + std::to_string(row) + "] is " + std::to_string(a.tokens[row]) +
                              ", expected a token in 0.." + std::to_string(vocabulary - 1));
  const int rows = std::max(1, NUMBERS / a.X);
  parallel.for_each((a.R - 1) / rows + 1, [&](size_t item) {
    const long begin = static_cast<long>(item) * rows, end = std::min<long>(a.R, begin + rows);
    for (long row = begin; row < end; ++row) {
      const long long token = a.tokens[row];
      const float* from = a.weights + token / TILE_COLUMNS * TILE_COLUMNS * a.X + token % TILE_COLUMNS;
      float* to = a.embeddings + row * a.X;
      for (int x = 0; x < a.X; ++x, from += TILE_COLUMNS) to[x] = *from;
    }
  });
}

}  // namespace tightbeam
