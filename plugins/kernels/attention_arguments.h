// Arguments that the attention operators share, and how a call fills them.
#pragma once

#include <cfloat>
#include <string>
#include <type_traits>

#include "kernels/operator.h"

namespace tightbeam {

inline void check_heads(const Call& call, int H, int G) {
  if (H % G != 0)
    call.fail("has H = " + std::to_string(H) + " query heads, expected a multiple of its G = " + std::to_string(G) +
              " key heads");
}

inline void check_pair(const Call& call, const char* one, const char* other) {
  if (call.has(one) != call.has(other))
    call.fail(std::string("has one of ") + one + " and " + other + ", expected both or none");
}

// The attribute weight_threshold of attention over a source; see plugins/ops/source_attention/__init__.py.
inline float weight_threshold(const Call& call) {
  const float threshold = call.float_attribute("weight_threshold");
  if (!(threshold >= 0 && threshold < 1))
    call.fail("attribute weight_threshold is " + std::to_string(threshold) + ", expected 0 or more, and less than 1");
  return threshold;
}

// The attribute softcap of attention; see plugins/ops/_softmax.py.
inline float softcap(const Call& call) {
  const float softcap = call.float_attribute("softcap");
  if (!(softcap >= 0 && softcap <= FLT_MAX))
    call.fail("attribute softcap is " + std::to_string(softcap) + ", expected a finite number of 0 or more");
  return softcap;
}

// Fills in what all operators with attention over a source have: sizes, attributes, query, mask, bias and outputs.
template <class Arguments>
void fill_source(const Call& call, Arguments& arguments) {
  using Float = std::remove_const_t<std::remove_pointer_t<decltype(arguments.query)>>;
  arguments.B = call.size("B");
  arguments.M = call.size("M");
  arguments.H = call.size("H");
  arguments.G = call.size("G");
  arguments.K = call.size("K");
  arguments.N = call.size("N");
  check_heads(call, arguments.H, arguments.G);
  arguments.scale = call.float_attribute("scale");
  arguments.softcap = softcap(call);
  arguments.weight_threshold = weight_threshold(call);
  arguments.query = call.input<Float>("query");
  arguments.mask = call.input<bool>("mask");
  arguments.key_bias = call.input<float>("key_bias");
  arguments.key_bias_positions = call.size("Y");
  if (call.has("key_bias") && arguments.key_bias_positions < arguments.N)
    call.fail("key_bias is for " + std::to_string(arguments.key_bias_positions) + " positions, expected at least the " +
              std::to_string(arguments.N) + " of the source");
  arguments.output = call.output<Float>("output");
  arguments.lse = call.output<float>("lse");
}

// Checks that the sums over a key's numbers and over positions fit 32 bits. Each term is a product of two bytes, at
// most 127 x 128.
inline void check_sums_of_bytes(const Call& call) {
  constexpr int MOST = 1 << 17;
  for (const char* letter : {"N", "K"})
    if (call.size(letter) > MOST)
      call.fail(std::string("has ") + letter + " = " + std::to_string(call.size(letter)) + ", expected at most " +
                std::to_string(MOST) + ": sums of integers would not fit 32 bits; take a float source cache");
}

// How many of a key head's K numbers are rotated; 0 without a rotation.
inline int rotated_numbers(const Call& call, int K) {
  const int numbers = 2 * call.size("X");
  if (numbers > K)
    call.fail("cosines rotate " + std::to_string(numbers) + " numbers, expected at most the " + std::to_string(K) +
              " of a key head");
  return numbers;
}

// Fills in what operators have whose keys are rotated when they are read.
template <class Arguments>
void fill_rotation(const Call& call, Arguments& arguments) {
  check_pair(call, "cosines", "sines");
  arguments.rotary = rotated_numbers(call, arguments.K);
  arguments.rotary_positions = call.size("P");
  arguments.cosines = call.input<float>("cosines");
  arguments.sines = call.input<float>("sines");
  arguments.first_positions = call.input<int>("first_positions");
}

// Fills in what operators with attention over a history share: sizes, attributes, history, bias and prefix.
template <class Float, class Arguments>
void fill_history(const Call& call, Arguments& arguments) {
  check_pair(call, "prefix_output", "prefix_lse");
  arguments.B = call.size("B");
  arguments.M = call.size("M");
  arguments.H = call.size("H");
  arguments.G = call.size("G");
  arguments.K = call.size("K");
  arguments.T = call.size("T");
  arguments.T_max = call.size("T_max");
  check_heads(call, arguments.H, arguments.G);
  if (arguments.T > arguments.T_max)
    call.fail("ancestry has " + std::to_string(arguments.T) + " positions, expected at most " +
              std::to_string(arguments.T_max) + ", the capacity of the cache");
  if (call.has("distance_bias") && call.has("row_bias"))
    call.fail("has distance_bias and row_bias, expected one of them");
  const bool by_row = call.has("row_bias");
  arguments.bias_heads = by_row || call.has("distance_bias") ? arguments.H : 0;
  arguments.bias_distances = call.size("Y");
  if (static_cast<int64_t>(arguments.bias_heads) * arguments.bias_distances > INT_MAX)
    call.fail("has " + std::to_string(static_cast<int64_t>(arguments.bias_heads) * arguments.bias_distances) +
              " biases for a row, expected at most " + std::to_string(INT_MAX));
  arguments.bias_row_stride = by_row ? arguments.bias_heads * arguments.bias_distances : 0;
  arguments.scale = call.float_attribute("scale");
  arguments.softcap = softcap(call);
  arguments.window = call.int_attribute("window");
  if (arguments.window < 0)
    call.fail("attribute window is " + std::to_string(arguments.window) + ", expected 0 or more");
  arguments.ancestry = call.input<int>("ancestry");
  arguments.lengths = call.input<int>("lengths");
  arguments.distance_bias = call.input<float>(by_row ? "row_bias" : "distance_bias");
  arguments.prefix_output = call.input<Float>("prefix_output");
  arguments.prefix_lse = call.input<float>("prefix_lse");
  arguments.output = call.output<Float>("output");
}

}  // namespace tightbeam
