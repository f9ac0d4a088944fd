// What a search asks of the logits of a step, and the tokens whose scores it changes.
#pragma once

#include <algorithm>
#include <climits>

#include "kernels/operator.h"
#include "ops/beam_top_k/arguments.h"
#include "ops/ngram_block/repeats.h"

namespace tightbeam {

constexpr long MOST_SCREENED = 16;  // candidates for which logits are left out

struct ScreenedSearch {
  int M, T, P;
  long C;
  int ngram_size;            // 0 blocks nothing
  bool whole;                // every logit is computed
  bool penalised;            // scores of tokens of the history are lowered
  const long long* history;  // [R, T], left-aligned
  const int* lengths;        // [B]
  const long long* banned;   // [R, P]; -1 fills unused places

  // Calls change(token) for each token of a row whose score BeamTopK changes; some of them may be twice, and some
  // may be no tokens of the vocabulary.
  template <class Change>
  void each_changed(long row, const Change& change) const {
    const long long* tokens = history + row * T;
    const int length = std::clamp(lengths[row / M], 0, T);
    if (penalised)
      for (int t = 0; t < length; ++t) change(tokens[t]);
    each_repeat(tokens, length, ngram_size, change);
    for (int p = 0; p < P; ++p) change(banned[row * P + p]);
  }
};

inline ScreenedSearch screened_search(const Call& call) {
  ScreenedSearch search{};
  search.M = call.size("M");
  search.T = call.size("T");
  search.P = call.size("P");
  search.C = static_cast<long>(call.scalar<int64_t>("candidates"));
  search.ngram_size = static_cast<int>(std::min<int64_t>(call.scalar<int64_t>("no_repeat_ngram_size"), INT_MAX));
  search.history = call.input<long long>("history");
  search.lengths = call.input<int>("lengths");
  search.banned = call.input<long long>("banned");
  const float penalty = call.scalar<float>("repetition_penalty");
  const bool free = in_no_trie(call.input<int>("trie_nodes"), long{call.size("B")} * search.M);
  search.penalised = penalty > 1;
  search.whole = call.scalar<bool>("all_logits") || call.scalar<bool>("normalize") || !(penalty >= 1) || !free ||
                 search.C < 1 || search.C > MOST_SCREENED || search.ngram_size < 0;
  return search;
}

}  // namespace tightbeam
