// BeamTopK on the CPU. A row's logits stay as they are: the tokens whose score a processor changes are few, so they are
// kept aside, skipped while the rest is searched for the best, and offered last. Of a row at a node of a trie, the
// node's children alone are searched. Many beams share a bound: what is below the best C of all rows is not offered.
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
constexpr float NOTHING = -std::numeric_limits<float>::infinity();
constexpr size_t BLOCK = 128;  // logits whose largest one is taken together
constexpr int MANY = 16;       // candidates from which a bound is looked for first: a step's own are fewer

struct Candidate {
  float score;
  int token;
};

// Of equal scores the lower token is better.
bool better(const Candidate& one, const Candidate& two) {
  return one.score != two.score ? one.score > two.score : one.token < two.token;
}

// The best C of what is offered.
class Best {
 public:
  explicit Best(int C) : room_(C) { kept_.reserve(C); }

  bool full() const { return kept_.size() == room_; }
  const Candidate& worst() const { return kept_.front(); }

  void offer(const Candidate& candidate) {
    if (full()) {
      if (!better(candidate, worst())) return;
      std::pop_heap(kept_.begin(), kept_.end(), better);
      kept_.pop_back();
    }
    kept_.push_back(candidate);
    std::push_heap(kept_.begin(), kept_.end(), better);
  }

  const std::vector<Candidate>& sorted() {
    std::sort_heap(kept_.begin(), kept_.end(), better);
    return kept_;
  }

 private:
  size_t room_;
  std::vector<Candidate> kept_;
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

  // What is needed before the best are looked for. `by_block`: the largest logit of each block is kept.
  void prepare(bool by_block) {
    normalize(by_block);
    change();
  }

  size_t changed() const { return changed_.size(); }

  // Appends the totals of the largest logits of the blocks, as if no processor changed them.
  void add_totals(std::vector<float>& totals) const {
    for (const float logit : highest_) totals.push_back(((logit - shift_) - log_total_) + a_.beam_scores[row_]);
  }

  // The best C; of those whose total is below `least` some are left out.
  std::vector<Candidate> best(float least) const {
    if (node_ != 0) return best_of_children();
    return best_of_all(least > NOTHING ? logit_of(least) : least_of_best());
  }

 private:
  std::string name(const char* tensor) const { return std::string(tensor) + "[" + std::to_string(row_) + "]"; }

  std::vector<Candidate> best_of_all(float least) const {
    Best best(a_.C);
    // Once full, a token has to be strictly above the worst one kept, which is a lower token.
    for (int token = 0; token < a_.vocabulary; ++token) {
      if (best.full() || least > NOTHING) {
        const float bound = best.full() ? logits_[best.worst().token] : least;
        token = static_cast<int>(math().next_above(logits_, token, a_.vocabulary, bound));
        if (token >= a_.vocabulary) break;
      }
      offer(best, token);
    }
    for (const Candidate& changed : changed_) best.offer(changed);
    return best.sorted();
  }

  // Tokens that are no children have -inf. Where too few others are left they follow, in ascending order.
  std::vector<Candidate> best_of_children() const {
    const int *begin = a_.trie_tokens + a_.trie_offsets[node_], *end = a_.trie_tokens + a_.trie_offsets[node_ + 1];
    Best best(a_.C);
    for (const int* token = begin; token < end; ++token)
      if (logits_[*token] != NOTHING && (!best.full() || logits_[*token] > logits_[best.worst().token]))
        offer(best, *token);
    for (const Candidate& changed : changed_)
      if (changed.score != NOTHING && std::binary_search(begin, end, changed.token)) best.offer(changed);
    std::vector<Candidate> found = best.sorted();
    std::vector<int> taken;
    for (const Candidate& candidate : found) taken.push_back(candidate.token);
    std::sort(taken.begin(), taken.end());
    for (int token = 0; found.size() < static_cast<size_t>(a_.C); ++token)
      if (!std::binary_search(taken.begin(), taken.end(), token)) found.push_back({NOTHING, token});
    return found;
  }

  void normalize(bool by_block) {
    const float row_max = by_block ? max_by_block() : math().row_max(logits_, a_.vocabulary);
    if (!std::isfinite(row_max))
      fail(OP, name("logits") +
                   (std::isnan(row_max) ? " holds NaN"
                    : row_max < 0       ? " is all -inf"
                                        : " holds +inf") +
                   ", expected numbers of which one at least is finite");
    if (!a_.normalize) return;
    shift_ = row_max;
    // Of a long double, since the logarithm of a double needs glibc 2.29.
    const long double total = math().sum_of_exponentials(logits_, a_.vocabulary, row_max);
    log_total_ = static_cast<float>(std::log(total));
  }

  // The largest logit, NaN if one is; keeps those of the blocks.
  float max_by_block() {
    float found = NOTHING;
    for (int first = 0; first < a_.vocabulary; first += static_cast<int>(BLOCK)) {
      const size_t size = std::min(BLOCK, static_cast<size_t>(a_.vocabulary - first));
      highest_.push_back(math().row_max(logits_ + first, size));
      if (highest_.back() > found || std::isnan(highest_.back())) found = highest_.back();
      if (std::isnan(found)) break;
    }
    return found;
  }

  // A number that the logits are above whose total is at least `least`, whatever the rounding.
  float logit_of(float least) const {
    const float beam = a_.beam_scores[row_];
    const float size = std::fabs(least) + std::fabs(beam) + std::fabs(shift_) + std::fabs(log_total_);
    const float found = (least - beam) + log_total_ + shift_;
    return found - std::max(8 * std::numeric_limits<float>::epsilon() * size, std::numeric_limits<float>::min());
  }

  // A number that the logits of the best C unchanged tokens are above; -inf where it is not worth looking for. The
  // largest logits of so many blocks are at least the last of these, and no more of them are changed than are left out.
  // What rounding may make an equal score is above it, too.
  float least_of_best() const {
    const size_t blocks = a_.vocabulary / BLOCK, wanted = a_.C + changed_.size();
    if (a_.C < MANY || 2 * wanted > blocks) return NOTHING;
    std::vector<float> highest(blocks);
    for (size_t block = 0; block < blocks; ++block) highest[block] = math().row_max(logits_ + block * BLOCK, BLOCK);
    std::nth_element(highest.begin(), highest.begin() + (wanted - 1), highest.end(), std::greater<float>());
    const float found = highest[wanted - 1];
    if (!std::isfinite(found)) return NOTHING;
    const float size = std::fabs(found) + std::fabs(shift_) + std::fabs(log_total_);
    return found - std::max(8 * std::numeric_limits<float>::epsilon() * size, std::numeric_limits<float>::min());
  }

  float score(int token) const { return (logits_[token] - shift_) - log_total_; }

  // The tokens that a processor gives another score, in ascending order.
  void change() {
    if (a_.repetition_penalty != 1)
      for (int t = 0; t < length_; ++t) {
        const int token = static_cast<int>(history_[t]);
        const float own = score(token);
        changed_.push_back({own < 0 ? own * a_.repetition_penalty : own / a_.repetition_penalty, token});
      }
    each_repeat(history_, length_, a_.ngram_size,
                [&](long long token) { changed_.push_back({NOTHING, static_cast<int>(token)}); });
    for (int p = 0; p < a_.P; ++p)
      if (banned_[p] != -1) changed_.push_back({NOTHING, static_cast<int>(banned_[p])});
    // Of several changes of a token the lowest counts, since all but the penalty are -inf.
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
  float shift_ = 0, log_total_ = 0;
  std::vector<Candidate> changed_;
  std::vector<float> highest_;  // logit of each block, the last one shorter
};

// A total that the best C of a sample's rows have at least; -inf where it is not worth looking for. So many blocks of
// all rows have a token with it, and no more of these are changed than are left out.
float least_total(const BeamTopKArguments<float>& a, const Row* rows) {
  std::vector<float> totals;
  size_t wanted = a.C;
  for (int m = 0; m < a.M; ++m) {
    rows[m].add_totals(totals);
    wanted += rows[m].changed();
  }
  if (2 * wanted > totals.size()) return NOTHING;
  std::nth_element(totals.begin(), totals.begin() + (wanted - 1), totals.end(), std::greater<float>());
  return std::isfinite(totals[wanted - 1]) ? totals[wanted - 1] : NOTHING;
}

void check_tokens(const BeamTopKArguments<float>& a, const char* tensor, const long long* tokens, long long row,
                  int count, int lowest) {
  for (int i = 0; i < count; ++i)
    if (tokens[i] < lowest || tokens[i] >= a.vocabulary)
      fail(OP, std::string(tensor) + "[" + std::to_string(row) + ", " + std::to_string(i) + "] is " +
                   std::to_string(tokens[i]) + ", expected " + std::to_string(lowest) + " to " +
                   std::to_string(a.vocabulary - 1));
}

// The nodes of the rows, their edges and the tokens of these: all that a step reads of a trie.
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
      if (token >= a.vocabulary) refuse("trie_tokens", "hold one outside the vocabulary");
    }
  }
}

void check(const BeamTopKArguments<float>& a) {
  check_lengths(OP, a.lengths, a.B, a.T, "the tokens of history");
  if (a.trie_nodes != nullptr) check_trie(a);
  for (long long row = 0; row < static_cast<long long>(a.B) * a.M; ++row)
    if (std::isnan(a.beam_scores[row]) || a.beam_scores[row] == -NOTHING)
      fail(OP, "beam_scores[" + std::to_string(row / a.M) + ", " + std::to_string(row % a.M) + "] is " +
                   std::to_string(a.beam_scores[row]) + ", expected a number");
  for (long long row = 0; row < static_cast<long long>(a.B) * a.M; ++row) {
    check_tokens(a, "history", a.history + row * a.T, row, a.lengths[row / a.M], 0);
    check_tokens(a, "banned", a.banned + row * a.P, row, a.P, -1);
  }
}

// The best C of a sample's rows: by total, then by beam, then by place in the row. Each row is in that order already,
// so the rows are merged, and no more is sorted than is returned.
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
  parallel.for_each(R, [&](size_t row) { rows[row].prepare(bounded); });
  std::vector<float> least(a.B, NOTHING);
  if (bounded) parallel.for_each(a.B, [&](size_t b) { least[b] = least_total(a, &rows[b * a.M]); });
  std::vector<std::vector<Candidate>> best(R);
  parallel.for_each(R, [&](size_t row) { best[row] = rows[row].best(least[row / a.M]); });
  for (int b = 0; b < a.B; ++b) merge(a, b, best);
}

}  // namespace tightbeam
