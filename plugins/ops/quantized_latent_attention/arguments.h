// Arguments of QuantizedLatentAttention's kernels, and how a call fills them. Letters: docs/design.md. R = B x M
// rows.
#pragma once

#include "kernels/attention_arguments.h"

namespace tightbeam {

template <class Float>
struct QuantizedLatentAttentionArguments {
  int B, M, H, N;
  int G;  // key heads in a row of the states
  int K;  // width of a key head; a row of the states has G K numbers
  float scale;
  float softcap;           // c: a scaled score s becomes c tanh(s / c); 0: no cap
  float weight_threshold;  // the value of a position may be left out if its weight is below; 0: never
  int key_bias_positions;

  const Float* query;         // [R, H, K]
  const signed char* states;  // [B, N, G K]: keys and values at once
  const float* states_scale;  // [B, N]
  const bool* mask;           // [B, N]: true for positions that count
  const float* key_bias;      // [H, key_bias_positions]: added to the scores, by position; or null

  Float* output;  // [R, H, G K]: each head's weighted sum of whole rows
  float* lse;     // [R, H]: log-sum-exp of the scores; or null
};

class Parallel;

template <class Float>
QuantizedLatentAttentionArguments<Float> quantized_latent_attention_arguments(const Call& call) {
  QuantizedLatentAttentionArguments<Float> arguments{};
  fill_source(call, arguments);
  check_sums_of_bytes(call);
  arguments.states = call.input<signed char>("states_bytes");
  arguments.states_scale = call.input<float>("states_scale");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it.
void quantized_latent_attention(const QuantizedLatentAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
