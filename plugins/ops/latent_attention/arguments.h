// What a kernel of LatentAttention is given. Letters: docs/design.md, Letters. R = B x M rows.
#pragma once

namespace tightbeam {

template <class Float>
struct LatentAttentionArguments {
  int B, M, H, N;
  int G;  // heads that the states are cut into for the scores; 1 in the EL and X form, H's divisor in the K form
  int K;  // width of such a head; a row of the states has G K numbers
  int rotary;  // numbers of a key head that are rotated for the scores, even, <= K; 0 without cosines
  float scale;
  float weight_threshold;  // a position whose weight is below it may be left out of the values; 0: none is

  const Float* query;    // [R, H, K]
  const Float* states;   // [B, N, G K]: keys and values at once
  const bool* mask;      // [B, N]: which positions count
  const float* cosines;  // [N or more, rotary / 2], by place in the source; or null. The queries have been rotated
  const float* sines;    // as cosines
  const float* key_scales;  // [B, G, N]: factors on the scores; or null

  Float* output;  // [R, H, G K]: each head's weights over whole rows
  float* lse;     // [R, H]: log of the sum of exponentials of the scaled scores; or null
};

}  // namespace tightbeam
