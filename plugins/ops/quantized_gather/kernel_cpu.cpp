#include <algorithm>

#include "kernels/cpu/check_values.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/quantized_gather/arguments.h"

namespace tightbeam {
namespace {

constexpr int GROUPS_OF_ITEM = 1 << 14;  // each in a cache line of its own, which take tens of microseconds

}  // namespace

void quantized_gather(const QuantizedGatherArguments<float>& a, const Parallel& parallel) {
  check_tokens("QuantizedGather", "tokens", -1, a.tokens, a.R, 0, a.vocabulary);
  const int groups = a.groups / a.blocks;
  parallel.for_each_row(a.R, std::max(1, GROUPS_OF_ITEM / a.groups), [&](long row) {
    const long long token = a.tokens[row];
    const unsigned char* from =
        a.weights + (token / TILE_COLUMNS * a.groups * TILE_COLUMNS + token % TILE_COLUMNS) * GROUP;
    float* to = a.embeddings + row * a.groups * GROUP;
    for (int block = 0; block < a.blocks; ++block) {
      const float scale = a.scale[static_cast<long>(block) * a.vocabulary + token];
      for (int group = 0; group < groups; ++group, from += TILE_STEP, to += GROUP)
        for (int i = 0; i < GROUP; ++i) to[i] = static_cast<float>(from[i] - 128) * scale;
    }
  });
}

}  // namespace tightbeam
