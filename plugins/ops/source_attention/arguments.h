// Arguments of SourceAttention's kernels, and how a call fills them. Letters: docs/design.md. R = B x M rows.
#pragma once

#ifndef __CUDACC__
#include "kernels/attention_arguments.h"
#endif

namespace tightbeam {

template <class Float>
struct SourceAttentionArguments {
  int B, M, H, G, K, V, N;
  float scale;
  float softcap;           // c: a scaled score s becomes c tanh(s / c); 0: no cap
  float weight_threshold;  // the value of a position may be left out if its weight is below; 0: never
  int key_bias_positions;

  const Float* query;     // [R, H K]
  const Float* key;       // [B, G, N, K], once for all beams of a sample
  const Float* value;     // [B, G, N, V]
  const bool* mask;       // [B, N]: true for positions that count
  const float* key_bias;  // [H, key_bias_positions]: added to the scores, by position; or null

  Float* output;  // [R, H V]
  float* lse;     // [R, H]: log-sum-exp of the scores; or null
};

#ifndef __CUDACC__  // the rest is for the host

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
