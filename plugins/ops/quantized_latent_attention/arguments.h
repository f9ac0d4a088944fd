// Arguments of the kernels of QuantizedLatentAttention, and how they are filled from a call. Letters: docs/design.md,
// Letters. R = B x M rows.
#pragma once

#include "kernels/attention_arguments.h"

namespace tightbeam {

template <class Float>
struct QuantizedLatentAttentionArguments {
  int B, M, H, N;
  int G;  // heads that the states are cut into for the scores
  int K;  // width of such a head; a row of the states has G K numbers
  float scale;
  float softcap;           // c: a scaled score s becomes c tanh(s / c); 0: none
  float weight_threshold;  // a position whose weight is below it may be left out of the values; 0: none is
  int key_bias_positions;

  const Float* query;         // [R, H, K]
  const signed char* states;  // [B, N, G K]: keys and values at once
  const float* states_scale;  // [B, N]
  const bool* mask;           // [B, N]: which positions count
  const float* key_bias;      // [H, key_bias_positions]: added to the scores by position; or null

  Float* output;  // [R, H, G K]: each head's weights over whole rows
  float* lse;     // [R, H]: log of the sum of exponentials of the scaled scores; or null
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

// The CPU kernel (kernel_cpu.cpp); 16-bit tensors are widened before and rounded after.
void quantized_latent_attention(const QuantizedLatentAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
