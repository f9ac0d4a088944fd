#include <algorithm>
#include <string>

#include "kernels/cpu/check_values.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/quantized_gather/arguments.h"

namespace tightbeam {
namespace {

constexpr int GROUPS_OF_ITEM = 1 << 14;  // each in a cache line of its own: tens of microseconds

}  // namespace

void quantized_gather(const QuantizedGatherArguments<float>& a, const Parallel& parallel) {
  for (int row = 0; row < a.R; ++row)
    if (a.tokens[row] < 0 || a.tokens[row] >= a.vocabulary)
      fail("QuantizedGather", "tokens[" + std::to_string(row) + "] is " + std::to_string(a.tokens[row]) +
                                  ", expected a token in 0.." + std::to_string(a.vocabulary - 1));
  const int rows = std::max(1, GROUPS_OF_ITEM / a.groups), groups = a.groups / a.blocks;
  parallel.for_each((a.R - 1) / rows + 1, [&](size_t item) {
    const long begin = static_cast<long>(item) * rows, end = std::min<long>(a.R, begin + rows);
    for (long row = begin; row < end; ++row) {
      const long long token = a.tokens[row];
      const unsigned char* from =
          a.weights + (token / TILE_COLUMNS * a.groups * TILE_COLUMNS + token % TILE_COLUMNS) * GROUP;
      float* to = a.embeddings + row * a.groups * GROUP;
      for (int block = 0; block < a.blocks; ++block) {
        const float scale = a.scale[static_cast<long>(block) * a.vocabulary + token];
        for (int group = 0; group < groups; ++group, from += TILE_STEP, to += GROUP)
          for (int i = 0; i < GROUP; ++i) to[i] = static_cast<float>(from[i] - 128) * scale;
      }
    }
  });
}

}  // namespace tightbeam
