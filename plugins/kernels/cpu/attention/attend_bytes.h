// Attention over a source whose rows are integers of 8 bits with a scale each; the beams of a sample share it.
#pragma once

#include <cstddef>

#include "kernels/cpu/parallel.h"

namespace tightbeam {

// Numbers from one sample, key head and position to the next; a row has `width` integers in one piece, and is worth
// them times its scale.
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
  float weight_threshold;  // a position whose weight is below it may be left out of the values
  const float* query;      // [R, H, width of the keys]
  ByteSourceRows keys, values;
  const bool* mask;       // [B, N]
  const float* key_bias;  // [H, key_bias_positions] added to the capped scores, or null
  int key_bias_positions;
  float* output;  // [R, H, width of the values]
  float* lse;     // [R, H] or null
};

void attend_bytes(const ByteSource& source, const Parallel& parallel);

}  // namespace tightbeam
