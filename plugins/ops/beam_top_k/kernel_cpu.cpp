// BeamTopK on the CPU. A processor changes the scores of few tokens only, so a row's logits stay unchanged: the changed
// tokens are kept in a list, skipped in the search for the best logits, and offered last. In a row at a node of a trie,
// only the node's children are searched. Many beams share a bound: tokens that cannot be among the best C of all rows
// are not offered.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/check_values.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel.h"
#include "ops/beam_top_k/arguments.h"
#include "ops/ngram_block/repeats.h"

namespace tightbeam {
namespace {

constexpr char OP[] = "BeamTopK";
constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
constexpr int BLOCK = 256;    // logits of which the maximum is taken at a time
constexpr int MANY = 16;      // candidates from which on the rows of a sample share a bound
constexpr long TOGETHER = 4;  // rows of an item at most: while one is summed, the next one is prefetched
constexpr long ITEMS = 16;    // at least, before an item has more rows than one

struct Candidate {
  float score;
  int token;
};

// Of equal scores the lower token is better.
bool better(const Candidate& one, const Candidate& two) {
  return one.score != two.score ? one.score > two.score : one.token < two.token;
}

// The best C of the candidates that are offered, in a heap with the worst one in front.
class Best {
 public:
  explicit Best(int C) : capacity_(C) { heap_.reserve(C); }

  bool full() const { return heap_.size() == capacity_; }
  const Candidate& worst() const { return heap_.front(); }

  void offer(const Candidate& candidate) {
    if (full()) {
      if (!better(candidate, worst())) return;
      std::pop_heap(heap_.begin(), heap_.end(), better);
      heap_.pop_back();
    }
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), better);
  }

  const std::vector<Candidate>& sorted() {
    std::sort_heap(heap_.begin(), heap_.end(), better);
    return heap_;
  }

 private:
  size_t capacity_;
  std::vector<Candidate> heap_;
};

class Row {
 public:
  Row(const BeamTopKArguments<float>& a, size_t row)
      : a_(a),
        row_(row),
        logits_(a.logits + row * a.vocabulary),
        history_(a.history + row * a.T),
        banned_(a.banned + row * a.P),
        length_(a.lengths[row / a.M]),
        node_(a.trie_nodes == nullptr ? 0 : a.trie_nodes[row]) {}

  // Prepares the search for the best tokens, and prefetches the logits of another row, unless they are null.
  void prepare(const float* next) {
    normalize(next);
    change();
  }

  size_t changed() const { return changed_.size(); }

  // Appends the total of each block's maximum, as if no processor changed it.
  void add_totals(std::vector<float>& totals) const {
    for (const float logit : maxima_) totals.push_back(((logit - shift_) - log_sum_) + a_.beam_scores[row_]);
  }

  // The best C tokens. Tokens whose total is below `least` may be left out.
  std::vector<Candidate> best(float least) const {
    if (node_ != 0) return best_of_children();
    return best_of_all(least > MINUS_INFINITY ? logit_of(least) : least_of_best());
  }

 private:
  std::string name(const char* tensor) const { return std::string(tensor) + "[" + std::to_string(row_) + "]"; }

  std::vector<Candidate> best_of_all(float least) const {
    Best best(a_.C);
    // Once `best` is full, a token must be strictly above the worst one there, which is a lower token.
    for (int first = 0; first < a_.vocabulary; first += BLOCK) {
      const int end = std::min(first + BLOCK, a_.vocabulary);
      for (int token = first; token < end; ++token) {
        if (best.full() || least > MINUS_INFINITY) {
          const float bound = best.full() ? logits_[best.worst().token] : least;
          if (maxima_[first / BLOCK] <= bound) break;
          token = static_cast<int>(math().next_above(logits_, token, end, bound));
          if (token >= end) break;
        }
        offer(best, token);
      }
    }
    for (const Candidate& changed : changed_) best.offer(changed);
    return best.sorted();
  }

  // All tokens but the children have -inf. If there are fewer than C children, these tokens follow in ascending order.
  std::vector<Candidate> best_of_children() const {
    const int *begin = a_.trie_tokens + a_.trie_offsets[node_], *end = a_.trie_tokens + a_.trie_offsets[node_ + 1];
    Best best(a_.C);
    for (const int* token = begin; token < end; ++token)
      if (logits_[*token] != MINUS_INFINITY && (!best.full() || logits_[*token] > logits_[best.worst().token]))
        offer(best, *token);
    for (const Candidate& changed : changed_)
      if (changed.score != MINUS_INFINITY && std::binary_search(begin, end, changed.token)) best.offer(changed);
    std::vector<Candidate> found = best.sorted();
    std::vector<int> taken;
    for (const Candidate& candidate : found) taken.push_back(candidate.token);
    std::sort(taken.begin(), taken.end());
    for (int token = 0; found.size() < static_cast<size_t>(a_.C); ++token)
      if (!std::binary_search(taken.begin(), taken.end(), token)) found.push_back({MINUS_INFINITY, token});
    return found;
  }

  void normalize(const float* next) {
    const float row_max = max_by_block();
    if (!std::isfinite(row_max))
      fail(OP, name("logits") +
                   (std::isnan(row_max) ? " holds NaN"
                    : row_max < 0       ? " is all -inf"
                                        : " holds +inf") +
                   ", expected no NaN or +inf, and at least one finite number");
    if (!a_.normalize) return;
    shift_ = row_max;
    // A long double, since the logarithm of a double needs glibc 2.29.
    const long double row_sum = math().sum_of_exponentials(logits_, a_.vocabulary, row_max, next);
    log_sum_ = static_cast<float>(std::log(row_sum));
  }

  // The largest logit, NaN if a logit is NaN. Stores the maximum of each block.
  float max_by_block() {
    float found = MINUS_INFINITY;
    for (int first = 0; first < a_.vocabulary; first += BLOCK) {
      maxima_.push_back(math().row_max(logits_ + first, std::min(BLOCK, a_.vocabulary - first)));
      if (maxima_.back() > found || std::isnan(maxima_.back())) found = maxima_.back();
      if (std::isnan(found)) break;
    }
    return found;
  }

  // A number below every logit whose total is at least `least`, with a margin for rounding.
  float logit_of(float least) const {
    const float beam = a_.beam_scores[row_];
    const float size = std::fabs(least) + std::fabs(beam) + std::fabs(shift_) + std::fabs(log_sum_);
    const float found = (least - beam) + log_sum_ + shift_;
    return found - std::max(8 * std::numeric_limits<float>::epsilon() * size, std::numeric_limits<float>::min());
  }

  // A number below the logits of the best C unchanged tokens, or -inf if the search for it does not pay. The maxima of
  // C + (number of changed tokens) blocks reach it, and at least C of these are unchanged. It has a margin, so that
  // tokens whose scores rounding makes equal are above it too.
  float least_of_best() const {
    const size_t wanted = a_.C + changed_.size();
    if (2 * wanted > maxima_.size()) return MINUS_INFINITY;
    std::vector<float> maxima = maxima_;
    std::nth_element(maxima.begin(), maxima.begin() + (wanted - 1), maxima.end(), std::greater<float>());
    const float found = maxima[wanted - 1];
    if (!std::isfinite(found)) return MINUS_INFINITY;
    const float size = std::fabs(found) + std::fabs(shift_) + std::fabs(log_sum_);
    return found - std::max(8 * std::numeric_limits<float>::epsilon() * size, std::numeric_limits<float>::min());
  }

  float score(int token) const { return (logits_[token] - shift_) - log_sum_; }

  // Lists the tokens whose scores a processor changes, in ascending order.
  void change() {
    if (a_.repetition_penalty != 1)
      for (int t = 0; t < length_; ++t) {
        const int token = static_cast<int>(history_[t]);
        const float own = score(token);
        changed_.push_back({own < 0 ? own * a_.repetition_penalty : own / a_.repetition_penalty, token});
      }
    each_repeat(history_, length_, a_.ngram_size,
                [&](long long token) { changed_.push_back({MINUS_INFINITY, static_cast<int>(token)}); });
    for (int p = 0; p < a_.P; ++p)
      if (banned_[p] != -1) changed_.push_back({MINUS_INFINITY, static_cast<int>(banned_[p])});
    // If a token is changed more than once, the lowest score counts, since every change but the penalty is -inf.
    std::sort(changed_.begin(), changed_.end(), [](const Candidate& one, const Candidate& two) {
      return one.token != two.token ? one.token < two.token : one.score < two.score;
    });
    const auto same = [](const Candidate& one, const Candidate& two) { return one.token == two.token; };
    changed_.erase(std::unique(changed_.begin(), changed_.end(), same), changed_.end());
  }

  void offer(Best& best, int token) const {
    const auto at = std::lower_bound(changed_.begin(), changed_.end(), token,
                                     [](const Candidate& changed, int wanted) { return changed.token < wanted; });
    if (at == changed_.end() || at->token != token) best.offer({score(token), token});
  }

  const BeamTopKArguments<float>& a_;
  const size_t row_;
  const float* const logits_;
  const long long *const history_, *const banned_;
  const int length_, node_;
  float shift_ = 0, log_sum_ = 0;
  std::vector<Candidate> changed_;
  std::vector<float> maxima_;  // of each block; the last block may be shorter
};

// A total that the best C tokens of a sample's rows reach, or -inf if the search for it does not pay. The maxima of C +
// (number of changed tokens) blocks of all rows reach it, and at least C of these are unchanged.
float least_total(const BeamTopKArguments<float>& a, const Row* rows) {
  std::vector<float> totals;
  size_t wanted = a.C;
  for (int m = 0; m < a.M; ++m) {
    rows[m].add_totals(totals);
    wanted += rows[m].changed();
  }
  if (2 * wanted > totals.size()) return MINUS_INFINITY;
  std::nth_element(totals.begin(), totals.begin() + (wanted - 1), totals.end(), std::greater<float>());
  return std::isfinite(totals[wanted - 1]) ? totals[wanted - 1] : MINUS_INFINITY;
}

// Checks all that a step reads of a trie: the nodes of the rows, their edges, and the edges' tokens.
void check_trie(const BeamTopKArguments<float>& a) {
  for (int row = 0; row < a.B * a.M; ++row) {
    const int node = a.trie_nodes[row];
    const auto refuse = [&](const char* tensor, const char* what) {
      fail(OP, std::string(tensor) + " of node " + std::to_string(node) + " (trie_nodes[" + std::to_string(row) +
                   "]) " + what);
    };
    if (node < 0 || node > a.Y + 1)
      fail(OP, "trie_nodes[" + std::to_string(row) + "] is " + std::to_string(node) + ", expected 0 to " +
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

void check(const BeamTopKArguments<float>& a) {
  check_lengths(OP, a.lengths, a.B, a.T, "the tokens of history");
  if (a.trie_nodes != nullptr) check_trie(a);
  for (long long row = 0; row < static_cast<long long>(a.B) * a.M; ++row)
    if (std::isnan(a.beam_scores[row]) || a.beam_scores[row] == -MINUS_INFINITY)
      fail(OP, "beam_scores[" + std::to_string(row / a.M) + ", " + std::to_string(row % a.M) + "] is " +
                   std::to_string(a.beam_scores[row]) + ", expected a finite number or -inf");
  for (long long row = 0; row < static_cast<long long>(a.B) * a.M; ++row) {
    check_tokens(OP, "history", row, a.history + row * a.T, a.lengths[row / a.M], 0, a.vocabulary);
    check_tokens(OP, "banned", row, a.banned + row * a.P, a.P, -1, a.vocabulary);
  }
}

// Writes the best C candidates of a sample, in the order of total, beam and place in the row. Each row is in this order
// already, so the rows are merged, and only what is returned is sorted.
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

void beam_top_k(const BeamTopKArguments<float>& a, const Parallel& parallel) {
  check(a);
  const size_t R = static_cast<size_t>(a.B) * a.M;
  const bool free =
      a.trie_nodes == nullptr || std::all_of(a.trie_nodes, a.trie_nodes + R, [](int n) { return n == 0; });
  const bool bounded = a.M > 1 && a.C >= MANY && free;
  std::vector<Row> rows;
  rows.reserve(R);
  for (size_t row = 0; row < R; ++row) rows.emplace_back(a, row);
  const long together = std::clamp<long>(static_cast<long>(R) / ITEMS, 1, TOGETHER);
  parallel.for_each_row(static_cast<long>(R), together, [&](long row) {
    const bool last = (row + 1) % together == 0 || row + 1 == static_cast<long>(R);
    rows[row].prepare(last ? nullptr : a.logits + (row + 1) * a.vocabulary);
  });
  std::vector<float> least(a.B, MINUS_INFINITY);
  if (bounded) parallel.for_each(a.B, [&](size_t b) { least[b] = least_total(a, &rows[b * a.M]); });
  std::vector<std::vector<Candidate>> best(R);
  parallel.for_each(R, [&](size_t row) { best[row] = rows[row].best(least[row / a.M]); });
  for (int b = 0; b < a.B; ++b) merge(a, b, best);
}

}  // namespace tightbeam
