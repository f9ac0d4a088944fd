// BeamLatentAttention's table, and its arguments out of a call. What it does: __init__.py.
#pragma once

#include "beam_latent_attention/arguments.h"
#include "common/operator.h"

namespace tightbeam {

inline const Operator& beam_latent_attention_table() {
  static const Operator table("BeamLatentAttention",
                              {
                                  Input("query", Element::Float, "B M, H K"),
                                  Input("row", Element::Float, "B M, G K"),
                                  Input("cache", Element::Float, "B M, G, T_max, K"),
                                  Input("ancestry", Element::int32, "B, M, T"),
                                  Input("lengths", Element::int32, "B"),
                                  Input("cosines", Element::float32, "P, X").optional(),
                                  Input("sines", Element::float32, "P, X").optional(),
                                  Input("first_positions", Element::int32, "B").optional(),
                                  Input("distance_bias", Element::float32, "H, Y").optional(),
                                  Input("prior_output", Element::Float, "B M, H G K").optional(),
                                  Input("prior_lse", Element::float32, "B M, H").optional(),
                              },
                              {
                                  Output("output", Element::Float, "B M, H G K"),
                                  Output("cache_out", Element::Float, "B M, G, T_max, K").updates("cache"),
                              },
                              {Attribute::required_float("scale"), Attribute::optional_int("window", 0)});
  return table;
}

template <class Float>
BeamLatentAttentionArguments<Float> beam_latent_attention_arguments(const Call& call) {
  BeamLatentAttentionArguments<Float> arguments{};
  arguments.B = call.size("B");
  arguments.M = call.size("M");
  arguments.H = call.size("H");
  arguments.G = call.size("G");
  arguments.K = call.size("K");
  arguments.T = call.size("T");
  arguments.T_max = call.size("T_max");
  if (arguments.H % arguments.G != 0)
    call.fail("has H = " + std::to_string(arguments.H) + " query heads, expected a multiple of its G = " +
              std::to_string(arguments.G) + " key heads");
  arguments.rotary = 2 * call.size("X");
  arguments.rotary_positions = call.size("P");
  arguments.bias_heads = call.has("distance_bias") ? arguments.H : 0;
  arguments.bias_distances = call.size("Y");
  arguments.scale = call.float_attribute("scale");
  arguments.window = call.int_attribute("window");
  arguments.ancestry = call.input<int>("ancestry");
  arguments.lengths = call.input<int>("lengths");
  arguments.cosines = call.input<float>("cosines");
  arguments.sines = call.input<float>("sines");
  arguments.first_positions = call.input<int>("first_positions");
  arguments.distance_bias = call.input<float>("distance_bias");
  arguments.prior_output = call.input<Float>("prior_output");
  arguments.prior_lse = call.input<float>("prior_lse");
  arguments.output = call.output<Float>("output");
  arguments.query = call.input<Float>("query");
  arguments.row = call.input<Float>("row");
  arguments.cache = call.output<Float>("cache_out");
  return arguments;
}

}  // namespace tightbeam
