// BeamTopK on the CPU. A row's logits stay unchanged. In a row at a node of a trie, only the node's children are
// searched. Many beams share a bound: tokens that cannot be among the best C of all rows are not offered.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/check_values.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel.h"
#include "ops/beam_top_k/search.h"

namespace tightbeam {
namespace {

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
constexpr int MANY = 16;                    // candidates from which on the rows of a sample share a bound
constexpr int TOGETHER = 8 * SEARCH_BLOCK;  // logits that are summed up while as many are prefetched
constexpr int COLUMNS_OF_ITEM = 16 * TOGETHER;

// The best C tokens of a row, but for tokens whose logits are not above `least`.
std::vector<Candidate> best_of_all(const BeamTopKArguments<float>& a, const SearchedRow& row, const float* logits,
                                   float least) {
  Best best(a.C, least);
  for (int first = 0; first < a.vocabulary; first += SEARCH_BLOCK) {
    const int end = std::min(first + SEARCH_BLOCK, a.vocabulary);
    for (int token = first; token < end; ++token) {
      if (best.limited()) {
        if (row.largest(first / SEARCH_BLOCK) <= best.bound()) break;
        token = static_cast<int>(math().next_above(logits, token, end, best.bound()));
        if (token >= end) break;
      }
      row.offer(best, token, logits[token]);
    }
  }
  for (const Candidate& changed : row.changed()) best.offer(changed);
  return best.sorted();
}

// The same at a node of a trie. All tokens but the node's children have -inf. If there are fewer than C children, these
// tokens follow in ascending order.
std::vector<Candidate> best_of_children(const BeamTopKArguments<float>& a, const SearchedRow& row, const float* logits,
                                        int node) {
  const int *begin = a.trie_tokens + a.trie_offsets[node], *end = a.trie_tokens + a.trie_offsets[node + 1];
  Best best(a.C, MINUS_INFINITY);
  for (const int* token = begin; token < end; ++token)
    if (logits[*token] > best.bound()) row.offer(best, *token, logits[*token]);
  for (const Candidate& changed : row.changed())
    if (changed.score != MINUS_INFINITY && std::binary_search(begin, end, changed.token)) best.offer(changed);
  std::vector<Candidate> found = best.sorted();
  std::vector<int> taken;
  for (const Candidate& candidate : found) taken.push_back(candidate.token);
  std::sort(taken.begin(), taken.end());
  for (int token = 0; found.size() < static_cast<size_t>(a.C); ++token)
    if (!std::binary_search(taken.begin(), taken.end(), token))
      found.push_back({MINUS_INFINITY, token, MINUS_INFINITY});
  return found;
}

// Checks all that a step reads of a trie: the nodes of the rows, their edges, and the edges' tokens.
void check_trie(const BeamTopKArguments<float>& a) {
  for (int row = 0; row < a.B * a.M; ++row) {
    const int node = a.trie_nodes[row];
    const auto refuse = [&](const char* tensor, const char* what) {
      fail(SEARCH_OP, std::string(tensor) + " of node " + std::to_string(node) + " (trie_nodes[" + std::to_string(row) +
                          "]) " + what);
    };
    if (node < 0 || node > a.Y + 1)
      fail(SEARCH_OP, "trie_nodes[" + std::to_string(row) + "] is " + std::to_string(node) + ", expected 0 to " +
                          std::to_string(a.Y + 1));
    const int begin = a.trie_offsets[node], end = a.trie_offsets[node + 1];
    if (node == 0) continue;
    if (begin < 0 || begin > end || end > a.Y) refuse("trie_offsets", "are not ascending");
    for (int edge = begin; edge < end; ++edge) {
      const int token = a.trie_tokens[edge], before = edge == begin ? -1 : a.trie_tokens[edge - 1];
      if (token <= before) refuse("trie_tokens", "are not ascending");
      if (token >= a.vocabulary) refuse("trie_tokens", "have a token outside the vocabulary");
    }
  }
}

// Writes the best C candidates of a sample.
void merge(const BeamTopKArguments<float>& a, size_t b, const std::vector<std::vector<Candidate>>& rows) {
  struct Head {
    float total;
    int beam, place;
  };
  const auto follows = [](const Head& one, const Head& two) {
    return one.total != two.total ? one.total < two.total : one.beam > two.beam;
  };
  const auto head = [&](int m, int place) {
    return Head{rows[b * a.M + m][place].score + a.beam_scores[b * a.M + m], m, place};
  };
  std::vector<Head> heads;
  for (int m = 0; m < a.M; ++m)
    if (!rows[b * a.M + m].empty()) heads.push_back(head(m, 0));
  std::make_heap(heads.begin(), heads.end(), follows);
  for (size_t c = b * a.C; c < (b + 1) * a.C; ++c) {
    std::pop_heap(heads.begin(), heads.end(), follows);
    const Head best = heads.back();
    heads.pop_back();
    a.scores[c] = best.total;
    a.beams[c] = best.beam;
    a.tokens[c] = rows[b * a.M + best.beam][best.place].token;
    if (static_cast<size_t>(best.place) + 1 == rows[b * a.M + best.beam].size()) continue;
    heads.push_back(head(best.beam, best.place + 1));
    std::push_heap(heads.begin(), heads.end(), follows);
  }
}

}  // namespace

float least_total(const BeamTopKArguments<float>& a, const SearchedRow* rows) {
  std::vector<float> totals;
  size_t wanted = a.C;
  for (int m = 0; m < a.M; ++m) {
    rows[m].add_totals(totals);
    wanted += rows[m].changed().size();
  }
  if (2 * wanted > totals.size()) return MINUS_INFINITY;
  std::nth_element(totals.begin(), totals.begin() + (wanted - 1), totals.end(), std::greater<float>());
  return std::isfinite(totals[wanted - 1]) ? totals[wanted - 1] : MINUS_INFINITY;
}

void check_search(const BeamTopKArguments<float>& a) {
  check_lengths(SEARCH_OP, a.lengths, a.B, a.T, "the tokens of history");
  if (a.trie_nodes != nullptr) check_trie(a);
  for (long long row = 0; row < static_cast<long long>(a.B) * a.M; ++row)
    if (std::isnan(a.beam_scores[row]) || a.beam_scores[row] == -MINUS_INFINITY)
      fail(SEARCH_OP, "beam_scores[" + std::to_string(row / a.M) + ", " + std::to_string(row % a.M) + "] is " +
                          std::to_string(a.beam_scores[row]) + ", expected a finite number or -inf");
  for (long long row = 0; row < static_cast<long long>(a.B) * a.M; ++row) {
    check_tokens(SEARCH_OP, "history", row, a.history + row * a.T, a.lengths[row / a.M], 0, a.vocabulary);
    check_tokens(SEARCH_OP, "banned", row, a.banned + row * a.P, a.P, -1, a.vocabulary);
  }
}

void write_best(const BeamTopKArguments<float>& a, const std::vector<std::vector<Candidate>>& rows) {
  for (int b = 0; b < a.B; ++b) merge(a, b, rows);
}

void beam_top_k(const BeamTopKArguments<float>& a, const Parallel& parallel) {
  check_search(a);
  const size_t R = static_cast<size_t>(a.B) * a.M;
  const bool bounded = a.M > 1 && a.C >= MANY && in_no_trie(a.trie_nodes, static_cast<long>(R));
  BlockSums sums(R, a.vocabulary);
  const int items = (a.vocabulary - 1) / COLUMNS_OF_ITEM + 1;  // of a row
  parallel.for_each(R * items, [&](size_t item) {
    const size_t row = item / items;
    const int begin = static_cast<int>(item % items) * COLUMNS_OF_ITEM;
    const int end = std::min(begin + COLUMNS_OF_ITEM, a.vocabulary);
    for (int first = begin; first < end; first += TOGETHER) {
      const float* logits = a.logits + row * a.vocabulary + first;
      for (int i = 0; i < TOGETHER; i += LINE / sizeof(float)) __builtin_prefetch(logits + TOGETHER + i, 0, 2);
      sums.add(row, 1, first, std::min(TOGETHER, end - first), logits, 0, a.normalize,
               [](size_t, const float* own, int count) { return math().row_max(own, count); });
    }
  });
  std::vector<SearchedRow> rows;
  rows.reserve(R);
  for (size_t row = 0; row < R; ++row) rows.emplace_back(a, row, a.logits + row * a.vocabulary);
  std::vector<float> least(a.B, MINUS_INFINITY);
  parallel.for_each(a.B, [&](size_t b) {
    for (int m = 0; m < a.M; ++m) rows[b * a.M + m].prepare(sums);
    if (bounded) least[b] = least_total(a, &rows[b * a.M]);
  });
  std::vector<std::vector<Candidate>> best(R);
  parallel.for_each(R, [&](size_t row) {
    const float *logits = a.logits + row * a.vocabulary, bound = least[row / a.M];
    const int node = a.trie_nodes == nullptr ? 0 : a.trie_nodes[row];
    best[row] = node != 0 ? best_of_children(a, rows[row], logits, node)
                          : best_of_all(a, rows[row], logits,
                                        bound > MINUS_INFINITY ? rows[row].logit_of(bound) : rows[row].least_of_best());
  });
  write_best(a, best);
}

}  // namespace tightbeam
