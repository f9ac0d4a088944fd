// Arguments of BeamLatentAttention's kernels, and how a call fills them. Letters: docs/design.md. R = B x M rows.
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
  int bias_row_stride;   // bias_heads x bias_distances with row_bias; 0 if all rows share one bias
  float scale;
  float softcap;  // c: a scaled score s becomes c tanh(s / c), before its bias; 0: no cap
  int window;     // how many of the newest positions count; 0: all

  const Float* query;          // [R, H K]
  const Float* row;            // [R, G K]: the new token's row of the cache
  const int* ancestry;         // [B, M, T]: the beam slot that wrote position t of a beam's own history
  const int* lengths;          // [B]: tokens of the sample so far, with the new one
  const float* cosines;        // [rotary_positions, rotary / 2] or null
  const float* sines;          // as cosines
  const int* first_positions;  // [B]: row of the rotation tables for position 0 of the cache; null: 0
  const float* distance_bias;  // [H, bias_distances], or row_bias [R, H, bias_distances]: added to the scaled score by
                               // the distance lengths-1-t; or null
  const Float* prefix_output;  // [R, H G K]: output of the attention over other positions, to merge; or null
  const float* prefix_lse;     // [R, H]: log-sum-exp of its scores; null if prefix_output is

  const float* row_scales;  // [R, G]: factors of the new row's scores; or null

  Float* cache;        // [R, G, T_max, K]: read, and written at position lengths-1
  float* scale_cache;  // [R, G, T_max, 1]: the factor of each position, read and written like the cache; null if
                       // row_scales is
  Float* output;       // [R, H, G K]: each head's weighted sum of whole rows, unrotated
};

#ifndef __CUDACC__  // the rest is for the host

class Parallel;

template <class Float>
BeamLatentAttentionArguments<Float> beam_latent_attention_arguments(const Call& call) {
  BeamLatentAttentionArguments<Float> arguments{};
  fill_history<Float>(call, arguments);
  fill_rotation(call, arguments);
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

// The CPU kernel (kernel_cpu.cpp). Raises OperatorError, before it writes anything, if a value points outside the cache
// or the tables.
void beam_latent_attention(const BeamLatentAttentionArguments<float>& arguments, const Parallel& parallel);

#endif

}  // namespace tightbeam
