// The repeated n-grams of a row's history, found in one pass: the failure table of Knuth, Morris and Pratt finds the
// windows that match the last n-1 tokens, so a row takes T steps for any n.
#pragma once

#include <vector>

namespace tightbeam {

// Calls block(token) for every token that follows an earlier occurrence of the last n-1 tokens.
template <class Block>
void each_repeat(const long long* history, int length, int ngram_size, const Block& block) {
  const int prefix = ngram_size - 1;
  if (prefix < 0 || ngram_size > length) return;
  const long long* last = history + length - prefix;
  // border[i] is the length of the longest proper prefix of last[0..i] that is also its suffix.
  std::vector<int> border(prefix, 0);
  for (int i = 1, matched = 0; i < prefix; ++i) {
    while (matched > 0 && last[i] != last[matched]) matched = border[matched - 1];
    if (last[i] == last[matched]) ++matched;
    border[i] = matched;
  }
  for (int e = 0, matched = 0; e < length; ++e) {  // the `matched` tokens before e equal the first ones of `last`
    if (matched == prefix) {
      block(history[e]);
      if (prefix == 0) continue;
      matched = border[prefix - 1];
    }
    while (matched > 0 && history[e] != last[matched]) matched = border[matched - 1];
    if (history[e] == last[matched]) ++matched;
  }
}

}  // namespace tightbeam
