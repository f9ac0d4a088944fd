// Arguments of the kernels of SourceAttention, and how they are filled from a call. Letters: docs/design.md, Letters. R
// = B x M rows.
#pragma once

#ifndef __CUDACC__
#include "kernels/attention_arguments.h"
#endif

namespace tightbeam {

template <class Float>
struct SourceAttentionArguments {
  int B, M, H, G, K, V, N;
  float scale;
  float softcap;           // c: a scaled score s becomes c tanh(s / c); 0: none
  float weight_threshold;  // a position whose weight is below it may be left out of the values; 0: none is
  int key_bias_positions;

  const Float* query;     // [R, H K]
  const Float* key;       // [B, G, N, K]: once a sample
  const Float* value;     // [B, G, N, V]
  const bool* mask;       // [B, N]: which positions count
  const float* key_bias;  // [H, key_bias_positions]: added to the scores by position; or null

  Float* output;  // [R, H V]
  float* lse;     // [R, H]: log of the sum of exponentials of the scaled scores; or null
};

#ifndef __CUDACC__  // the rest is the host's

class Parallel;

template <class Float>
SourceAttentionArguments<Float> source_attention_arguments(const Call& call) {
  SourceAttentionArguments<Float> arguments{};
  fill_source(call, arguments);
  arguments.V = call.size("V");
  arguments.key = call.input<Float>("key");
  arguments.value = call.input<Float>("value");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp).
void source_attention(const SourceAttentionArguments<float>& arguments, const Parallel& parallel);

#endif

}  // namespace tightbeam
