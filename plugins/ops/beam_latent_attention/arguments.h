// What a kernel of BeamLatentAttention is given. Letters: docs/design.md, Letters. R = B x M rows.
#pragma once

namespace tightbeam {

template <class Float>
struct BeamLatentAttentionArguments {
  int B, M, H, G, K;
  int T;      // width of ancestry; lengths <= T
  int T_max;  // positions that the cache has room for; T <= T_max
  int rotary;          // numbers of a key head that are rotated for the scores, even, <= K; 0 without cosines
  int rotary_positions;  // rows of the rotation tables
  int bias_heads;      // H, or 0 without a bias
  int bias_distances;  // numbers of a head in distance_bias
  int bias_row_stride;  // bias_heads x bias_distances with row_bias, else 0: all rows share one
  float scale;
  int window;  // newest positions that count; 0: all

  const Float* query;        // [R, H K]
  const Float* row;          // [R, G K]: the new token's row of the cache
  const int* ancestry;       // [B, M, T]: which beam slot wrote position t of a beam's own history
  const int* lengths;        // [B]: tokens of the sample so far, the new one included
  const float* cosines;      // [rotary_positions, rotary / 2] or null
  const float* sines;        // as cosines
  const int* first_positions;  // [B]: where position 0 of the cache stands in the rotation tables; null: at 0
  const float* distance_bias;  // [H, bias_distances], added to the scaled score by distance lengths-1-t; or row_bias,
                               // [R, H, bias_distances]; or null
  const Float* prefix_output;   // [R, H G K]: attention over other positions, to be joined in one softmax; or null
  const float* prefix_lse;      // [R, H]: log of the sum of exponentials of its scores; null with prefix_output

  const float* row_scales;  // [R, G]: factors on the new row's scores; or null

  Float* cache;   // [R, G, T_max, K]: read, and written at position lengths-1
  float* scale_cache;  // [R, G, T_max, 1]: likewise, the factors of each position; null with row_scales
  Float* output;  // [R, H, G K]: each head's weights over whole rows, unrotated
};

}  // namespace tightbeam
