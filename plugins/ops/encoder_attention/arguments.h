// Arguments of EncoderAttention's kernels, and how a call fills them.
#pragma once

#include "kernels/operator.h"

namespace tightbeam {

template <class Float>
struct EncoderAttentionArguments {
  int B, N;
  int H;
  int K;  // numbers of a query and of a key
  int V;  // of a value
  float scale;

  const Float* query;          // [B, N, H K]
  const Float* key;            // [B, N, H K]
  const Float* value;          // [B, N, H V]
  const bool* mask;            // [B, N], or null
  const float* distance_bias;  // [H, 2 N - 1], or null
  Float* output;               // [B, N, H V]
};

class Parallel;

template <class Float>
EncoderAttentionArguments<Float> encoder_attention_arguments(const Call& call) {
  EncoderAttentionArguments<Float> arguments{};
  arguments.B = call.size("B");
  arguments.N = call.size("N");
  const int width = call.size("width"), value_width = call.size("value_width");
  arguments.H = call.int_attribute("heads");
  if (arguments.H < 1 || width % arguments.H != 0 || value_width % arguments.H != 0)
    call.fail("attribute heads is " + std::to_string(arguments.H) + ", expected a divisor of " + std::to_string(width) +
              " and " + std::to_string(value_width) + ", the widths of queries and values");
  arguments.K = width / arguments.H;
  arguments.V = value_width / arguments.H;
  arguments.scale = call.float_attribute("scale");
  arguments.query = call.input<Float>("query");
  arguments.key = call.input<Float>("key");
  arguments.value = call.input<Float>("value");
  arguments.mask = call.input<bool>("mask");
  arguments.distance_bias = call.input<float>("distance_bias");
  if (arguments.distance_bias != nullptr) {
    const int heads = call.size("H"), distances = call.size("distances");
    if (heads != arguments.H || distances != 2 * arguments.N - 1)
      call.fail("distance_bias is [" + std::to_string(heads) + ", " + std::to_string(distances) + "], expected [" +
                std::to_string(arguments.H) + ", " + std::to_string(2 * arguments.N - 1) + "]");
  }
  arguments.output = call.output<Float>("output");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it.
void encoder_attention(const EncoderAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
