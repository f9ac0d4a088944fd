// Arguments of the kernels of QuantizedSourceAttention, and how they are filled from a call. Letters: docs/design.md,
// Letters. R = B x M rows.
#pragma once

#include "kernels/attention_arguments.h"

namespace tightbeam {

template <class Float>
struct QuantizedSourceAttentionArguments {
  int B, M, H, G, K, V, N;
  float scale;
  float softcap;           // c: a scaled score s becomes c tanh(s / c); 0: none
  float weight_threshold;  // a position whose weight is below it may be left out of the values; 0: none is
  int key_bias_positions;

  const Float* query;        // [R, H K]
  const signed char* key;    // [B, G, N, K]: once a sample
  const float* key_scale;    // [B, G, N]
  const signed char* value;  // [B, G, N, V]
  const float* value_scale;  // [B, G, N]
  const bool* mask;          // [B, N]: which positions count
  const float* key_bias;     // [H, key_bias_positions]: added to the scores by position; or null

  Float* output;  // [R, H V]
  float* lse;     // [R, H]: log of the sum of exponentials of the scaled scores; or null
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

// The CPU kernel (kernel_cpu.cpp); 16-bit tensors are widened before and rounded after.
void quantized_source_attention(const QuantizedSourceAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
