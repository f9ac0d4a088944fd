// BeamTopK's table, and its arguments out of a call. What it does: __init__.py.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops/beam_top_k/arguments.h"
#include "kernels/operator.h"

namespace tightbeam {

inline const Operator& beam_top_k_table() {
  static const Operator table("BeamTopK",
                              {
                                  Input("logits", Element::Float, "B M, vocabulary"),
                                  Input("beam_scores", Element::float32, "B, M"),
                                  Input("history", Element::int64, "B M, T"),
                                  Input("lengths", Element::int32, "B"),
                                  Input("banned", Element::int64, "B M, P"),
                                  Scalar("normalize", Element::boolean),
                                  Scalar("repetition_penalty", Element::float32),
                                  Scalar("no_repeat_ngram_size", Element::int64),
                                  Scalar("candidates", Element::int64).gives("C", "vocabulary"),
                              },
                              {
                                  Output("scores", Element::float32, "B, C"),
                                  Output("beams", Element::int64, "B, C"),
                                  Output("tokens", Element::int64, "B, C"),
                              },
                              {}, "P");
  return table;
}

template <class Float>
BeamTopKArguments<Float> beam_top_k_arguments(const Call& call) {
  BeamTopKArguments<Float> arguments{};
  arguments.B = call.size("B");
  arguments.M = call.size("M");
  arguments.C = call.size("C");
  arguments.T = call.size("T");
  arguments.P = call.size("P");
  arguments.vocabulary = call.size("vocabulary");
  if (call.scalars_on_device) {
    arguments.normalize_at = call.input<bool>("normalize");
    arguments.repetition_penalty_at = call.input<float>("repetition_penalty");
    arguments.ngram_size_at = call.input<long long>("no_repeat_ngram_size");
  } else {
    const auto ngram_size = call.scalar<int64_t>("no_repeat_ngram_size");
    if (ngram_size < 0) call.fail("no_repeat_ngram_size is " + std::to_string(ngram_size) + ", expected 0 or more");
    arguments.ngram_size = static_cast<int>(std::min<int64_t>(ngram_size, INT_MAX));
    arguments.normalize = call.scalar<bool>("normalize");
    const auto penalty = arguments.repetition_penalty = call.scalar<float>("repetition_penalty");
    if (!(penalty > 0) || std::isinf(penalty))
      call.fail("repetition_penalty is " + std::to_string(penalty) + ", expected a number above 0");
  }
  arguments.logits = call.input<Float>("logits");
  arguments.beam_scores = call.input<float>("beam_scores");
  arguments.history = call.input<long long>("history");
  arguments.lengths = call.input<int>("lengths");
  arguments.banned = call.input<long long>("banned");
  arguments.scores = call.output<float>("scores");
  arguments.beams = call.output<long long>("beams");
  arguments.tokens = call.output<long long>("tokens");
  return arguments;
}

}  // namespace tightbeam
