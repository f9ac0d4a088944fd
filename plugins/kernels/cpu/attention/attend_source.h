// Attention over a source that the beams of a sample share; SourceAttention and LatentAttention differ in strides only.
#pragma once

#include <cstddef>

#include "kernels/cpu/attention/rotation.h"
#include "kernels/cpu/parallel.h"

namespace tightbeam {

// Numbers from one sample, key head and position to the next; a row has `width` numbers in one piece.
struct SourceRows {
  const float* data;
  size_t sample, head, position;
  int width;
};

struct Source {
  int B, M, H, G, N;
  float scale, softcap;
  float weight_threshold;  // a position whose weight is below it may be left out of the values
  const float* query;      // [R, H, width of the keys]
  SourceRows keys, values;
  const bool* mask;         // [B, N]
  Rotation rotation;        // of the keys, by their place in the source; the queries have been rotated
  const float* key_scales;  // [B, G, N] factors on the scores, or null
  const float* key_bias;    // [H, key_bias_positions] added to the capped scores, or null
  int key_bias_positions;
  float* output;  // [R, H, width of the values]
  float* lse;     // [R, H] or null
};

void attend_source(const Source& source, const Parallel& parallel);

}  // namespace tightbeam
