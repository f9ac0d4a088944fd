// Attention over a source that the beams of a sample share, for SourceAttention and LatentAttention.
#pragma once

#include <cstddef>

#include "kernels/cpu/attention/rotation.h"
#include "kernels/cpu/parallel.h"

namespace tightbeam {

// Rows of `width` contiguous numbers. `sample`, `head` and `position` are distances from one to the next, in numbers.
struct SourceRows {
  const float* data;
  size_t sample, head, position;
  int width;
};

struct Source {
  int B, M, H, G, N;
  float scale, softcap;
  float weight_threshold;  // the value of a position may be left out if its weight is below
  const float* query;      // [R, H, width of the keys]
  SourceRows keys, values;
  const bool* mask;         // [B, N]
  Rotation rotation;        // of the keys, by their positions in the source; the queries are rotated already
  const float* key_scales;  // [B, G, N]: factors of the scores; or null
  const float* key_bias;    // [H, key_bias_positions]: added to the capped scores; or null
  int key_bias_positions;
  float* output;  // [R, H, width of the values]
  float* lse;     // [R, H] or null
};

void attend_source(const Source& source, const Parallel& parallel);

}  // namespace tightbeam
