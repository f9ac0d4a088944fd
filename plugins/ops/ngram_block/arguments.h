// Arguments of NGramBlock's kernels, and how a call fills them.
#pragma once

#ifndef __CUDACC__
#include <algorithm>

#include "kernels/operator.h"
#endif

namespace tightbeam {

template <class Float>
struct NGramBlockArguments {
  int R, T;
  int vocabulary;
  int ngram_size;                  // 0 blocks nothing; may be larger than T
  const long long* ngram_size_at;  // the same on the device, if the host does not know it; or null

  const long long* history;  // [R, T], left-aligned
  const int* lengths;        // [R]: tokens of the row that count

  const Float* scores;  // [R, vocabulary]; may be the same memory as blocked
  Float* blocked;       // [R, vocabulary]
};

#ifndef __CUDACC__  // the rest is for the host

class Parallel;

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

// The CPU kernel (kernel_cpu.cpp). Raises OperatorError for a length beyond the history and for a token outside the
// vocabulary. It has versions for all float types.
template <class Float>
void ngram_block(const NGramBlockArguments<Float>& arguments, const Parallel& parallel);

#endif

}  // namespace tightbeam
