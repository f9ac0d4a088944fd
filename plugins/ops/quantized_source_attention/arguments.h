// Arguments of QuantizedSourceAttention's kernels, and how a call fills them. Letters: docs/design.md. R = B x M
// rows.
#pragma once

#include "kernels/attention_arguments.h"

namespace tightbeam {

template <class Float>
struct QuantizedSourceAttentionArguments {
  int B, M, H, G, K, V, N;
  float scale;
  float softcap;           // c: a scaled score s becomes c tanh(s / c); 0: no cap
  float weight_threshold;  // the value of a position may be left out if its weight is below; 0: never
  int key_bias_positions;

  const Float* query;        // [R, H K]
  const signed char* key;    // [B, G, N, K], once for all beams of a sample
  const float* key_scale;    // [B, G, N]
  const signed char* value;  // [B, G, N, V]
  const float* value_scale;  // [B, G, N]
  const bool* mask;          // [B, N]: true for positions that count
  const float* key_bias;     // [H, key_bias_positions]: added to the scores, by position; or null

  Float* output;  // [R, H V]
  float* lse;     // [R, H]: log-sum-exp of the scores; or null
};

class Parallel;

template <class Float>
QuantizedSourceAttentionArguments<Float> quantized_source_attention_arguments(const Call& call) {
  QuantizedSourceAttentionArguments<Float> arguments{};
  fill_source(call, arguments);
  check_sums_of_bytes(call);
  arguments.V = call.size("V");
  arguments.key = call.input<signed char>("key_bytes");
  arguments.key_scale = call.input<float>("key_scale");
  arguments.value = call.input<signed char>("value_bytes");
  arguments.value_scale = call.input<float>("value_scale");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it.
void quantized_source_attention(const QuantizedSourceAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
