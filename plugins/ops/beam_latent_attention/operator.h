// BeamLatentAttention's table, and its arguments out of a call. What it does: __init__.py.
#pragma once

#include "ops/beam_latent_attention/arguments.h"
#include "kernels/attention_arguments.h"

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
                                  Input("prefix_output", Element::Float, "B M, H G K").optional(),
                                  Input("prefix_lse", Element::float32, "B M, H").optional(),
                                  Input("row_bias", Element::float32, "B M, H, Y").optional(),
                                  Input("row_scales", Element::float32, "B M, G").optional(),
                                  Input("scale_cache", Element::float32, "B M, G, T_max, 1").optional(),
                              },
                              {
                                  Output("output", Element::Float, "B M, H G K"),
                                  Output("cache_out", Element::Float, "B M, G, T_max, K").updates("cache"),
                                  Output("scale_cache_out", Element::float32, "B M, G, T_max, 1")
                                      .updates("scale_cache")
                                      .optional(),
                              },
                              {Attribute::required_float("scale"), Attribute::optional_int("window", 0)});
  return table;
}

template <class Float>
BeamLatentAttentionArguments<Float> beam_latent_attention_arguments(const Call& call) {
  BeamLatentAttentionArguments<Float> arguments{};
  fill_history<Float>(call, arguments);
  arguments.query = call.input<Float>("query");
  arguments.row = call.input<Float>("row");
  arguments.cache = call.output<Float>("cache_out");
  check_pair(call, "row_scales", "scale_cache");
  arguments.row_scales = call.input<float>("row_scales");
  arguments.scale_cache = call.output<float>("scale_cache_out");
  if ((arguments.row_scales == nullptr) != (arguments.scale_cache == nullptr))
    call.fail("has one of scale_cache and scale_cache_out, expected both or none");
  return arguments;
}

}  // namespace tightbeam
