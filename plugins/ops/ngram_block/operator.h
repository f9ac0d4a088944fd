// NGramBlock's table, and its arguments out of a call. What it does: __init__.py.
#pragma once

#include "kernels/operator.h"
#include "ops/ngram_block/arguments.h"

namespace tightbeam {

inline const Operator& ngram_block_table() {
  static const Operator table("NGramBlock",
                              {
                                  Input("scores", Element::Float, "R, vocabulary"),
                                  Input("history", Element::int64, "R, T"),
                                  Input("lengths", Element::int32, "R"),
                                  Scalar("ngram_size", Element::int64),
                              },
                              {Output("blocked", Element::Float, "R, vocabulary").reuses("scores")}, {});
  return table;
}

template <class Float>
NGramBlockArguments<Float> ngram_block_arguments(const Call& call) {
  NGramBlockArguments<Float> arguments{};
  arguments.R = call.size("R");
  arguments.T = call.size("T");
  arguments.vocabulary = call.size("vocabulary");
  if (call.scalars_on_device) {
    arguments.ngram_size_at = call.input<long long>("ngram_size");
  } else {
    const auto ngram_size = call.scalar<int64_t>("ngram_size");
    if (ngram_size < 0) call.fail("ngram_size is " + std::to_string(ngram_size) + ", expected 0 or more");
    arguments.ngram_size = static_cast<int>(std::min<int64_t>(ngram_size, INT_MAX));
  }
  arguments.history = call.input<long long>("history");
  arguments.lengths = call.input<int>("lengths");
  arguments.scores = call.input<Float>("scores");
  arguments.blocked = call.output<Float>("blocked");
  return arguments;
}

}  // namespace tightbeam
