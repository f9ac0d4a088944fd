// SourceAttention's table, and its arguments out of a call. What it does: __init__.py.
#pragma once

#include "ops/source_attention/arguments.h"
#include "kernels/attention_arguments.h"

namespace tightbeam {

inline const Operator& source_attention_table() {
  static const Operator table("SourceAttention",
                              {
                                  Input("query", Element::Float, "B M, H K"),
                                  Input("key", Element::Float, "B, G, N, K"),
                                  Input("value", Element::Float, "B, G, N, V"),
                                  Input("mask", Element::boolean, "B, N"),
                              },
                              {
                                  Output("output", Element::Float, "B M, H V"),
                                  Output("lse", Element::float32, "B M, H").optional(),
                              },
                              {Attribute::required_float("scale"), Attribute::optional_float("weight_threshold", 0)});
  return table;
}

template <class Float>
SourceAttentionArguments<Float> source_attention_arguments(const Call& call) {
  SourceAttentionArguments<Float> arguments{};
  arguments.B = call.size("B");
  arguments.M = call.size("M");
  arguments.H = call.size("H");
  arguments.G = call.size("G");
  arguments.K = call.size("K");
  arguments.V = call.size("V");
  arguments.N = call.size("N");
  check_heads(call, arguments.H, arguments.G);
  arguments.scale = call.float_attribute("scale");
  arguments.weight_threshold = weight_threshold(call);
  arguments.query = call.input<Float>("query");
  arguments.key = call.input<Float>("key");
  arguments.value = call.input<Float>("value");
  arguments.mask = call.input<bool>("mask");
  arguments.output = call.output<Float>("output");
  arguments.lse = call.output<float>("lse");
  return arguments;
}

}  // namespace tightbeam
