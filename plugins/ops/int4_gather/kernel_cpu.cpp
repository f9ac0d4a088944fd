#include <algorithm>

#include "kernels/cpu/check_values.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/int4_gather/arguments.h"

namespace tightbeam {
namespace {

constexpr int BLOCKS_OF_ITEM = 1 << 12;  // each in four cache lines of its own, which take tens of microseconds

}  // namespace

void int4_gather(const Int4GatherArguments<float>& a, const Parallel& parallel) {
  check_tokens("Int4Gather", "tokens", -1, a.tokens, a.R, 0, a.vocabulary);
  parallel.for_each_row(a.R, std::max(1, BLOCKS_OF_ITEM / a.blocks), [&](long row) {
    const long long token = a.tokens[row];
    const long first_block = token / TILE_COLUMNS * a.blocks, column = token % TILE_COLUMNS;
    const unsigned char* from = a.weights + first_block * INT4_BLOCK * TILE_COLUMNS / 2 + column * GROUP;
    const unsigned char* scales = a.block_scale + first_block * TILE_COLUMNS + column;
    float* to = a.embeddings + row * a.blocks * INT4_BLOCK;
    for (int block = 0; block < a.blocks; ++block, scales += TILE_COLUMNS) {
      const float scale = static_cast<float>(*scales) * a.scale[token];
      for (int pair = 0; pair < INT4_GROUPS / 2; ++pair, from += TILE_STEP, to += 2 * GROUP)
        for (int i = 0; i < GROUP; ++i) {
          to[i] = static_cast<float>((from[i] & 15) - 8) * scale;
          to[GROUP + i] = static_cast<float>((from[i] >> 4) - 8) * scale;
        }
    }
  });
}

}  // namespace tightbeam
