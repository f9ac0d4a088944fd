// Attention over a source of 8-bit rows, each with a scale of its own. The beams of a sample share the source.
#pragma once

#include <cstddef>

#include "kernels/cpu/parallel.h"

namespace tightbeam {

// Rows of integers, `width` of them contiguous; a row's numbers are its integers times its scale. `sample`, `head` and
// `position` are distances from one to the next, in numbers; `scale_sample` and `scale_head` likewise, among the
// scales.
struct ByteSourceRows {
  const signed char* data;
  size_t sample, head, position;
  int width;
  const float* scales;
  size_t scale_sample, scale_head;
};

struct ByteSource {
  int B, M, H, G, N;
  float scale, softcap;
  float weight_threshold;  // the value of a position may be left out if its weight is below
  const float* query;      // [R, H, width of the keys]
  ByteSourceRows keys, values;
  const bool* mask;       // [B, N]
  const float* key_bias;  // [H, key_bias_positions]: added to the capped scores; or null
  int key_bias_positions;
  float* output;  // [R, H, width of the values]
  float* lse;     // [R, H] or null
};

void attend_bytes(const ByteSource& source, const Parallel& parallel);

}  // namespace tightbeam
