// Arguments of BeamTopK's kernels, and how a call fills them. Letters: docs/design.md. R = B x M rows, C candidates,
// P banned tokens, Y edges of a trie.
#pragma once

#ifndef __CUDACC__
#include <algorithm>
#include <cmath>

#include "kernels/operator.h"
#endif

namespace tightbeam {

template <class Float>
struct BeamTopKArguments {
  int B, M, C, T, P, Y;
  int vocabulary;
  int ngram_size;  // 0 blocks nothing
  bool normalize;
  float repetition_penalty;

  // The same three on the device, if the host does not know them; else null. An invalid value makes every sample NaN.
  const bool* normalize_at;
  const float* repetition_penalty_at;
  const long long* ngram_size_at;

  const Float* logits;       // [R, vocabulary]
  const float* beam_scores;  // [B, M]
  const long long* history;  // [R, T], left-aligned
  const int* lengths;        // [B]: tokens of the sample so far
  const long long* banned;   // [R, P]; -1 fills unused places

  // A trie, or null.
  const int* trie_offsets;  // [Y + 3]: first edge of each node; 1 is the root, 0 stands for no node
  const int* trie_tokens;   // [Y]: the token of each edge, ascending within a node; edge e leads to node e + 2
  const int* trie_nodes;    // [R]: the row's node; 0: any token may follow

  float* scores;      // [B, C], descending
  long long* beams;   // [B, C]
  long long* tokens;  // [B, C]
};

#ifndef __CUDACC__  // the rest is for the host

class Parallel;

// Whether no row is at a node of a trie; `nodes` [rows] may be null.
inline bool in_no_trie(const int* nodes, long rows) {
  return nodes == nullptr || std::all_of(nodes, nodes + rows, [](int node) { return node == 0; });
}

// Fills in all arguments but the logits.
template <class Float>
BeamTopKArguments<Float> search_arguments(const Call& call) {
  BeamTopKArguments<Float> arguments{};
  arguments.B = call.size("B");
  arguments.M = call.size("M");
  arguments.C = call.size("C");
  arguments.T = call.size("T");
  arguments.P = call.size("P");
  arguments.Y = call.size("Y");
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
  arguments.beam_scores = call.input<float>("beam_scores");
  arguments.history = call.input<long long>("history");
  arguments.lengths = call.input<int>("lengths");
  arguments.banned = call.input<long long>("banned");
  arguments.trie_offsets = call.input<int>("trie_offsets");
  arguments.trie_tokens = call.input<int>("trie_tokens");
  arguments.trie_nodes = call.input<int>("trie_nodes");
  if (!arguments.trie_offsets != !arguments.trie_nodes || call.has("trie_tokens") != call.has("trie_nodes"))
    call.fail("has some of trie_offsets, trie_tokens and trie_nodes, expected all or none");
  arguments.scores = call.output<float>("scores");
  arguments.beams = call.output<long long>("beams");
  arguments.tokens = call.output<long long>("tokens");
  return arguments;
}

template <class Float>
BeamTopKArguments<Float> beam_top_k_arguments(const Call& call) {
  BeamTopKArguments<Float> arguments = search_arguments<Float>(call);
  arguments.logits = call.input<Float>("logits");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Raises OperatorError for logits and beam scores by which no candidate can be chosen
// (NaN, +inf, a row of -inf), for tokens outside the vocabulary, for lengths beyond the history, and for an invalid
// trie.
void beam_top_k(const BeamTopKArguments<float>& arguments, const Parallel& parallel);

#endif

}  // namespace tightbeam
