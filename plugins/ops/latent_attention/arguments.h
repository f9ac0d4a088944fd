// Arguments of the kernels of LatentAttention, and how they are filled from a call. Letters: docs/design.md, Letters. R
// = B x M rows.
#pragma once

#ifndef __CUDACC__
#include "kernels/attention_arguments.h"
#endif

namespace tightbeam {

template <class Float>
struct LatentAttentionArguments {
  int B, M, H, N;
  int G;       // heads that the states are cut into for the scores; 1 in the EL and X form, H's divisor in the K form
  int K;       // width of such a head; a row of the states has G K numbers
  int rotary;  // numbers of a key head that are rotated for the scores, even, <= K; 0 without cosines
  float scale;
  float softcap;           // c: a scaled score s becomes c tanh(s / c); 0: none
  float weight_threshold;  // a position whose weight is below it may be left out of the values; 0: none is
  int key_bias_positions;

  const Float* query;       // [R, H, K]
  const Float* states;      // [B, N, G K]: keys and values at once
  const bool* mask;         // [B, N]: which positions count
  const float* key_bias;    // [H, key_bias_positions]: added to the scores by position; or null
  const float* cosines;     // [N or more, rotary / 2], by place in the source; or null. The queries have been rotated
  const float* sines;       // as cosines
  const float* key_scales;  // [B, G, N]: factors on the scores; or null

  Float* output;  // [R, H, G K]: each head's weights over whole rows
  float* lse;     // [R, H]: log of the sum of exponentials of the scaled scores; or null
};

#ifndef __CUDACC__  // the rest is the host's

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
