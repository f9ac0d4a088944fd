// LatentAttention's table, and its arguments out of a call. What it does: __init__.py.
#pragma once

#include "ops/latent_attention/arguments.h"
#include "kernels/attention_arguments.h"

namespace tightbeam {

inline const Operator& latent_attention_table() {
  static const Operator table("LatentAttention",
                              {
                                  Input("query", Element::Float, "B M, H, K"),
                                  Input("states", Element::Float, "B, N, G K"),
                                  Input("mask", Element::boolean, "B, N"),
                                  Input("cosines", Element::float32, "P, X").optional(),
                                  Input("sines", Element::float32, "P, X").optional(),
                                  Input("key_scales", Element::float32, "B, G, N").optional(),
                              },
                              {
                                  Output("output", Element::Float, "B M, H, G K"),
                                  Output("lse", Element::float32, "B M, H").optional(),
                              },
                              {Attribute::required_float("scale"), Attribute::optional_float("weight_threshold", 0)});
  return table;
}

template <class Float>
LatentAttentionArguments<Float> latent_attention_arguments(const Call& call) {
  LatentAttentionArguments<Float> arguments{};
  arguments.B = call.size("B");
  arguments.M = call.size("M");
  arguments.H = call.size("H");
  arguments.G = call.size("G");
  arguments.K = call.size("K");
  arguments.N = call.size("N");
  check_heads(call, arguments.H, arguments.G);
  check_pair(call, "cosines", "sines");
  arguments.rotary = rotated_numbers(call, arguments.K);
  if (call.has("cosines") && call.size("P") < arguments.N)
    call.fail("cosines has " + std::to_string(call.size("P")) + " rows, expected one for each of the " +
              std::to_string(arguments.N) + " positions of states");
  arguments.scale = call.float_attribute("scale");
  arguments.weight_threshold = weight_threshold(call);
  arguments.query = call.input<Float>("query");
  arguments.states = call.input<Float>("states");
  arguments.mask = call.input<bool>("mask");
  arguments.cosines = call.input<float>("cosines");
  arguments.sines = call.input<float>("sines");
  arguments.key_scales = call.input<float>("key_scales");
  arguments.output = call.output<Float>("output");
  arguments.lse = call.output<float>("lse");
  return arguments;
}

}  // namespace tightbeam
