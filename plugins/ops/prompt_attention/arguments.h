// Arguments of PromptAttention's kernels, and how a call fills them.
#pragma once

#include "kernels/operator.h"

namespace tightbeam {

template <class Float>
struct PromptAttentionArguments {
  int B, N;
  int H, G;
  int K;          // numbers of a query and of a key
  int V;          // of a value
  int positions;  // of keys and values
  float scale;
  float softcap;  // c: a scaled score s becomes c tanh(s / c), before its bias; 0: no cap
  int window;     // how many of the newest positions count; 0: all
  int biases;     // numbers of a head in key_bias

  const Float* query;       // [B, H, N, K]
  const Float* key;         // [B, G, positions, K]
  const Float* value;       // [B, G, positions, V]
  const long long* starts;  // [B]: position of the first query; or null
  const float* key_bias;    // [H, biases], or null
  Float* output;            // [B, N, H V]

  int start(size_t b) const { return starts == nullptr ? 0 : static_cast<int>(starts[b]); }
};

class Parallel;

template <class Float>
PromptAttentionArguments<Float> prompt_attention_arguments(const Call& call) {
  PromptAttentionArguments<Float> arguments{};
  arguments.B = call.size("B");
  arguments.N = call.size("N");
  arguments.H = call.size("H");
  arguments.G = call.size("G");
  arguments.K = call.size("K");
  arguments.V = call.size("V");
  arguments.positions = call.size("positions");
  arguments.biases = call.size("Y");
  if (arguments.H % arguments.G != 0)
    call.fail("has " + std::to_string(arguments.H) + " query heads, expected a multiple of its " +
              std::to_string(arguments.G) + " key heads");
  arguments.scale = call.float_attribute("scale");
  arguments.softcap = call.float_attribute("softcap");
  if (arguments.softcap < 0) call.fail("attribute softcap is below 0; expected 0 for no cap, or more");
  arguments.window = call.int_attribute("window");
  if (arguments.window < 0) call.fail("attribute window is below 0; expected 0 for all positions, or more");
  arguments.query = call.input<Float>("query");
  arguments.key = call.input<Float>("key");
  arguments.value = call.input<Float>("value");
  static_assert(sizeof(long long) == sizeof(int64_t));
  arguments.starts = call.input<long long>("starts");
  arguments.key_bias = call.input<float>("key_bias");
  arguments.output = call.output<Float>("output");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it. Raises OperatorError,
// before it writes anything, if a query is at a position without a key or without a bias.
void prompt_attention(const PromptAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
