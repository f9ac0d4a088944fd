// Arguments of QuantizedBeamAttention's kernel, and how a call fills them. Letters: docs/design.md. R = B x M rows.
#pragma once

#include "kernels/attention_arguments.h"

namespace tightbeam {

template <class Float>
struct QuantizedBeamAttentionArguments {
  int B, M, H, G, K, V;
  int T;                // width of ancestry; lengths <= T
  int T_max;            // capacity of the caches in positions; T <= T_max
  int bias_heads;       // H, or 0 without a bias
  int bias_distances;   // numbers of a head in distance_bias
  int bias_row_stride;  // bias_heads x bias_distances with row_bias; 0 if all rows share one bias
  float scale;
  float softcap;  // c: a scaled score s becomes c tanh(s / c), before its bias; 0: no cap
  int window;     // how many of the newest positions count; 0: all

  const Float* projected;      // [R, H K + G K + G V]: the new token's queries, keys and values side by side
  const int* ancestry;         // [B, M, T]: the beam slot that wrote position t of a beam's own history
  const int* lengths;          // [B]: tokens of the sample so far, with the new one
  const float* distance_bias;  // [H, bias_distances], or row_bias [R, H, bias_distances]: added to the scaled score by
                               // the distance lengths-1-t; or null
  const Float* prefix_output;  // [R, H V]: output of the attention over other positions, to merge; or null
  const float* prefix_lse;     // [R, H]: log-sum-exp of its scores; null if prefix_output is

  signed char* key_cache;    // [R, G, T_max, K]: read, and written at position lengths-1
  float* key_scale_cache;    // [R, G, T_max]
  signed char* value_cache;  // [R, G, T_max, V]
  float* value_scale_cache;  // [R, G, T_max]
  Float* output;             // [R, H V]
};

class Parallel;

template <class Float>
QuantizedBeamAttentionArguments<Float> quantized_beam_attention_arguments(const Call& call) {
  QuantizedBeamAttentionArguments<Float> arguments{};
  fill_history<Float>(call, arguments);
  arguments.V = call.size("V");
  arguments.projected = call.input<Float>("projected");
  arguments.key_cache = call.output<signed char>("key_cache_out");
  arguments.key_scale_cache = call.output<float>("key_scale_cache_out");
  arguments.value_cache = call.output<signed char>("value_cache_out");
  arguments.value_scale_cache = call.output<float>("value_scale_cache_out");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Raises OperatorError, before it writes anything, if a value points outside the
// cache.
void quantized_beam_attention(const QuantizedBeamAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
