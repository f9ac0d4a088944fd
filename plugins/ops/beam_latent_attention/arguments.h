// Arguments of the kernels of BeamLatentAttention, and how they are filled from a call. Letters: docs/design.md,
// Letters. R = B x M rows.
#pragma once

#ifndef __CUDACC__
#include "kernels/attention_arguments.h"
#endif

namespace tightbeam {

template <class Float>
struct BeamLatentAttentionArguments {
  int B, M, H, G, K;
  int T;                 // width of ancestry; lengths <= T
  int T_max;             // capacity of the cache in positions; T <= T_max
  int rotary;            // numbers of a key head that are rotated for the scores, even, <= K; 0 without cosines
  int rotary_positions;  // rows of the rotation tables
  int bias_heads;        // H, or 0 without a bias
  int bias_distances;    // numbers of a head in distance_bias
  int bias_row_stride;   // bias_heads x bias_distances with row_bias, else 0: all rows share one
  float scale;
  float softcap;  // c: a scaled score s becomes c tanh(s / c), before its bias; 0: none
  int window;     // newest positions that count; 0: all

  const Float* query;          // [R, H K]
  const Float* row;            // [R, G K]: the new token's row of the cache
  const int* ancestry;         // [B, M, T]: which beam slot wrote position t of a beam's own history
  const int* lengths;          // [B]: tokens of the sample so far, the new one included
  const float* cosines;        // [rotary_positions, rotary / 2] or null
  const float* sines;          // as cosines
  const int* first_positions;  // [B]: row of the rotation tables for position 0 of the cache; null: 0
  const float* distance_bias;  // [H, bias_distances], added to the scaled score by distance lengths-1-t; or row_bias,
                               // [R, H, bias_distances]; or null
  const Float* prefix_output;  // [R, H G K]: attention over other positions, an attention state to be merged; or null
  const float* prefix_lse;     // [R, H]: log of the sum of exponentials of its scores; null with prefix_output

  const float* row_scales;  // [R, G]: factors on the new row's scores; or null

  Float* cache;        // [R, G, T_max, K]: read, and written at position lengths-1
  float* scale_cache;  // [R, G, T_max, 1]: the factors of each position, read and written as the cache; null with
                       // row_scales
  Float* output;       // [R, H, G K]: each head's weights over whole rows, unrotated
};

#ifndef __CUDACC__  // the rest is the host's

class Parallel;

template <class Float>
BeamLatentAttentionArguments<Float> beam_latent_attention_arguments(const Call& call) {
  BeamLatentAttentionArguments<Float> arguments{};
  fill_history<Float>(call, arguments);
  arguments.query = call.input<Float>("query");
  arguments.row = call.input<Float>("row");
  arguments.cache = call.output<Float>("cache_out");
  check_pair(call, "row_scales", "scale_cache");
  arguments.row_scales = call.input<float>("row_scales");
  arguments.scale_cache = call.output<float>("scale_cache_out");
  if ((arguments.row_scales == nullptr) != (arguments.scale_cache == nullptr))
    call.fail("has one of scale_cache and scale_cache_out, expected both or none");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Raises OperatorError, before anything is written, for values that point outside the
// cache or the tables.
void beam_latent_attention(const BeamLatentAttentionArguments<float>& arguments, const Parallel& parallel);

#endif

}  // namespace tightbeam
