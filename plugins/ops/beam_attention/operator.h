// BeamAttention's table, and its arguments out of a call. What it does: __init__.py.
#pragma once

#include "ops/beam_attention/arguments.h"
#include "kernels/attention_arguments.h"

namespace tightbeam {

inline const Operator& beam_attention_table() {
  static const Operator table("BeamAttention",
                              {
                                  Input("projected", Element::Float, "B M, H K + G K + G V"),
                                  Input("key_cache", Element::Float, "B M, G, T_max, K"),
                                  Input("value_cache", Element::Float, "B M, G, T_max, V"),
                                  Input("ancestry", Element::int32, "B, M, T"),
                                  Input("lengths", Element::int32, "B"),
                                  Input("cosines", Element::float32, "P, X").optional(),
                                  Input("sines", Element::float32, "P, X").optional(),
                                  Input("first_positions", Element::int32, "B").optional(),
                                  Input("distance_bias", Element::float32, "H, Y").optional(),
                                  Input("prefix_output", Element::Float, "B M, H V").optional(),
                                  Input("prefix_lse", Element::float32, "B M, H").optional(),
                                  Input("row_bias", Element::float32, "B M, H, Y").optional(),
                              },
                              {
                                  Output("output", Element::Float, "B M, H V"),
                                  Output("key_cache_out", Element::Float, "B M, G, T_max, K").updates("key_cache"),
                                  Output("value_cache_out", Element::Float, "B M, G, T_max, V").updates("value_cache"),
                              },
                              {Attribute::required_float("scale"), Attribute::optional_int("window", 0)});
  return table;
}

template <class Float>
BeamAttentionArguments<Float> beam_attention_arguments(const Call& call) {
  BeamAttentionArguments<Float> arguments{};
  fill_history<Float>(call, arguments);
  arguments.V = call.size("V");
  arguments.projected = call.input<Float>("projected");
  arguments.key_cache = call.output<Float>("key_cache_out");
  arguments.value_cache = call.output<Float>("value_cache_out");
  return arguments;
}

}  // namespace tightbeam
