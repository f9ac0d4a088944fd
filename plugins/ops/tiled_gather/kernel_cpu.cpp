#include <algorithm>

#include "kernels/cpu/check_values.h"
#include "kernels/cpu/parallel.h"
#include "ops/tiled_gather/arguments.h"

namespace tightbeam {
namespace {

constexpr int NUMBERS = 1 << 13;  // of an item, each in a cache line of its own

}  // namespace

void tiled_gather(const TiledGatherArguments<float>& a, const Parallel& parallel) {
  check_tokens("TiledGather", "tokens", -1, a.tokens, a.R, 0, static_cast<long long>(a.tiles) * TILE_COLUMNS);
  parallel.for_each_row(a.R, std::max(1, NUMBERS / a.X), [&](long row) {
    const long long token = a.tokens[row];
    const float* from = a.weights + token / TILE_COLUMNS * TILE_COLUMNS * a.X + token % TILE_COLUMNS;
    float* to = a.embeddings + row * a.X;
    for (int x = 0; x < a.X; ++x, from += TILE_COLUMNS) to[x] = *from;
  });
}

}  // namespace tightbeam
