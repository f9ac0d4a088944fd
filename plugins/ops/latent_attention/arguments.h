// Arguments of LatentAttention's kernels, and how a call fills them. Letters: docs/design.md. R = B x M rows.
#pragma once

#ifndef __CUDACC__
#include "kernels/attention_arguments.h"
#endif

namespace tightbeam {

template <class Float>
struct LatentAttentionArguments {
  int B, M, H, N;
  int G;       // key heads in a row of the states: 1 in the EL and X form, a divisor of H in the K form
  int K;       // width of a key head; a row of the states has G K numbers
  int rotary;  // numbers of a key head that are rotated for the scores, even, <= K; 0 without cosines
  float scale;
  float softcap;           // c: a scaled score s becomes c tanh(s / c); 0: no cap
  float weight_threshold;  // the value of a position may be left out if its weight is below; 0: never
  int key_bias_positions;

  const Float* query;     // [R, H, K]
  const Float* states;    // [B, N, G K]: keys and values at once
  const bool* mask;       // [B, N]: true for positions that count
  const float* key_bias;  // [H, key_bias_positions]: added to the scores, by position; or null
  const float* cosines;  // [N or more, rotary / 2], by position in the source; or null. The queries are rotated already
  const float* sines;    // as cosines
  const float* key_scales;  // [B, G, N]: factors of the scores; or null

  Float* output;  // [R, H, G K]: each head's weighted sum of whole rows
  float* lse;     // [R, H]: log-sum-exp of the scores; or null
};

#ifndef __CUDACC__  // the rest is for the host

class Parallel;

template <class Float>
LatentAttentionArguments<Float> latent_attention_arguments(const Call& call) {
  LatentAttentionArguments<Float> arguments{};
  fill_source(call, arguments);
  check_pair(call, "cosines", "sines");
  arguments.rotary = rotated_numbers(call, arguments.K);
  if (call.has("cosines") && call.size("P") < arguments.N)
    call.fail("cosines has " + std::to_string(call.size("P")) + " rows, expected one for each of the " +
              std::to_string(arguments.N) + " positions of states");
  arguments.states = call.input<Float>("states");
  arguments.cosines = call.input<float>("cosines");
  arguments.sines = call.input<float>("sines");
  arguments.key_scales = call.input<float>("key_scales");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp).
void latent_attention(const LatentAttentionArguments<float>& arguments, const Parallel& parallel);

#endif

}  // namespace tightbeam
