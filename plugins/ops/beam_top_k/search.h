// What the CPU kernels of the search share: BeamTopK, which reads all logits, and QuantizedBeamTopK, which keeps none.
// Both know each row's logits by blocks of columns at first: the largest one of a block, and the sum of its
// exponentials. So their scores have the same bits.
//
// A processor changes the scores of few tokens only: the changed tokens are kept in a list, skipped in the search for
// the best logits, and offered last.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/math.h"
#include "kernels/tensor.h"
#include "ops/beam_top_k/arguments.h"
#include "ops/ngram_block/repeats.h"

namespace tightbeam {

constexpr char SEARCH_OP[] = "BeamTopK";
constexpr int SEARCH_BLOCK = 256;  // logits that are summed up at a time

// The blocks of all rows, [R, blocks].
struct BlockSums {
  BlockSums(size_t rows, int vocabulary)
      : blocks((vocabulary - 1) / SEARCH_BLOCK + 1),
        largest(aligned<float>(rows * blocks)),
        sums(aligned<float>(rows * blocks)) {}

  // Sums up whole blocks of some rows: `logits` are those from `column` on, `step` apart. First come the largest ones
  // of all, `largest_of(index, logits, count)`, so that no block waits for its own. Without normalisation nobody needs
  // the sums.
  template <class LargestOf>
  void add(size_t row, int rows, int column, int columns, const float* logits, long step, bool normalize,
           const LargestOf& largest_of) {
    const auto each = [&](const auto& visit) {
      for (int i = 0; i < rows; ++i)
        for (int first = 0; first < columns; first += SEARCH_BLOCK)
          visit((row + i) * blocks + (column + first) / SEARCH_BLOCK, logits + i * step + first,
                std::min(SEARCH_BLOCK, columns - first));
    };
    each([&](size_t index, const float* own, int count) { largest[index] = largest_of(index, own, count); });
    if (!normalize) return;
    each([&](size_t index, const float* own, int count) {
      const float shift = largest[index];
      sums[index] = std::isfinite(shift) ? math().sum_of_exponentials(own, count, shift) : 0;
    });
  }

  const size_t blocks;
  const Aligned<float> largest;  // NaN if a logit is NaN
  const Aligned<float> sums;     // of exp(logit - largest); 0 if all logits are -inf
};

struct Candidate {
  float score;
  int token;
  float logit;  // of an unchanged token
};

// Of equal scores the lower token is better.
inline bool better(const Candidate& one, const Candidate& two) {
  return one.score != two.score ? one.score > two.score : one.token < two.token;
}

// The best C of the candidates that are offered, in a heap with the worst one in front.
class Best {
 public:
  // Logits up to `least` cannot be among the best.
  Best(int C, float least) : capacity_(C), least_(least) { heap_.reserve(C); }

  // False if every candidate counts, whatever its logit.
  bool limited() const { return heap_.size() == capacity_ || least_ > -std::numeric_limits<float>::infinity(); }

  // If it is limited: unchanged tokens from here on count if their logits are above. Of equal ones the first counts.
  float bound() const { return heap_.size() == capacity_ ? heap_.front().logit : least_; }

  void offer(const Candidate& candidate) {
    if (heap_.size() == capacity_) {
      if (!better(candidate, heap_.front())) return;
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
  const size_t capacity_;
  const float least_;
  std::vector<Candidate> heap_;
};

// A row of a search: how its logits become scores.
class SearchedRow {
 public:
  // `logits` may be null if no penalty changes them.
  SearchedRow(const BeamTopKArguments<float>& a, size_t row, const float* logits)
      : a_(a), row_(row), logits_(logits), length_(a.lengths[row / a.M]) {}

  // Prepares the search, once the row's blocks are summed up.
  void prepare(const BlockSums& sums) {
    largest_ = &sums.largest[row_ * sums.blocks];
    blocks_ = sums.blocks;
    normalize(&sums.sums[row_ * sums.blocks]);
    change();
  }

  float largest(size_t block) const { return largest_[block]; }

  const std::vector<Candidate>& changed() const { return changed_; }

  // Appends the total of each block's largest logit, as if no processor changed it.
  void add_totals(std::vector<float>& totals) const {
    for (size_t block = 0; block < blocks_; ++block)
      totals.push_back(((largest_[block] - shift_) - log_sum_) + a_.beam_scores[row_]);
  }

  // A number below every logit whose total is at least `least`, which is finite, with a margin for rounding; infinite
  // if no logit of the beam has such a total.
  float logit_of(float least) const {
    const float beam = a_.beam_scores[row_];
    if (std::isinf(beam)) return std::numeric_limits<float>::infinity();
    const float size = std::fabs(least) + std::fabs(beam) + std::fabs(shift_) + std::fabs(log_sum_);
    return below((least - beam) + log_sum_ + shift_, size);
  }

  // A number below the logits of the best C unchanged tokens, or -inf if the search for it does not pay. The largest
  // logits of C + (number of changed tokens) blocks reach it, and at least C of these are unchanged. It has a margin,
  // so that tokens whose scores rounding makes equal are above it too.
  float least_of_best() const {
    const size_t wanted = a_.C + changed_.size();
    if (2 * wanted > blocks_) return -std::numeric_limits<float>::infinity();
    std::vector<float> largest(largest_, largest_ + blocks_);
    std::nth_element(largest.begin(), largest.begin() + (wanted - 1), largest.end(), std::greater<float>());
    const float found = largest[wanted - 1];
    if (!std::isfinite(found)) return -std::numeric_limits<float>::infinity();
    return below(found, std::fabs(found) + std::fabs(shift_) + std::fabs(log_sum_));
  }

  // Offers a token unless a processor changes it.
  void offer(Best& best, int token, float logit) const {
    const auto at = std::lower_bound(changed_.begin(), changed_.end(), token,
                                     [](const Candidate& changed, int wanted) { return changed.token < wanted; });
    if (at == changed_.end() || at->token != token) best.offer({score(logit), token, logit});
  }

 private:
  float score(float logit) const { return (logit - shift_) - log_sum_; }

  // `size` is the sum of the magnitudes from which rounding made the number.
  static float below(float number, float size) {
    return number - std::max(8 * std::numeric_limits<float>::epsilon() * size, std::numeric_limits<float>::min());
  }

  void normalize(const float* sums) {
    const float row_max = math().row_max(largest_, blocks_);
    if (!std::isfinite(row_max))
      throw OperatorError{std::string(SEARCH_OP) + ": logits[" + std::to_string(row_) + "]" +
                          (std::isnan(row_max) ? " holds NaN"
                           : row_max < 0       ? " is all -inf"
                                               : " holds +inf") +
                          ", expected no NaN or +inf, and at least one finite number"};
    if (!a_.normalize) return;
    shift_ = row_max;
    std::vector<float> weights(largest_, largest_ + blocks_);
    math().exponentials(weights.data(), blocks_, shift_);
    long double row_sum = 0;  // long, since the logarithm of a double needs glibc 2.29
    for (size_t block = 0; block < blocks_; ++block) row_sum += static_cast<double>(weights[block]) * sums[block];
    log_sum_ = static_cast<float>(std::log(row_sum));
  }

  // Lists the tokens whose scores a processor changes, in ascending order.
  void change() {
    const long long *history = a_.history + row_ * a_.T, *banned = a_.banned + row_ * a_.P;
    constexpr float OUT = -std::numeric_limits<float>::infinity();
    if (a_.repetition_penalty != 1)
      for (int t = 0; t < length_; ++t) {
        const int token = static_cast<int>(history[t]);
        const float logit = logits_[token], own = score(logit);
        changed_.push_back({own < 0 ? own * a_.repetition_penalty : own / a_.repetition_penalty, token, logit});
      }
    each_repeat(history, length_, a_.ngram_size,
                [&](long long token) { changed_.push_back({OUT, static_cast<int>(token), OUT}); });
    for (int p = 0; p < a_.P; ++p)
      if (banned[p] != -1) changed_.push_back({OUT, static_cast<int>(banned[p]), OUT});
    // If a token is changed more than once, the lowest score counts, since every change but the penalty is -inf.
    std::sort(changed_.begin(), changed_.end(), [](const Candidate& one, const Candidate& two) {
      return one.token != two.token ? one.token < two.token : one.score < two.score;
    });
    const auto same = [](const Candidate& one, const Candidate& two) { return one.token == two.token; };
    changed_.erase(std::unique(changed_.begin(), changed_.end(), same), changed_.end());
  }

  const BeamTopKArguments<float>& a_;
  const size_t row_;
  const float* const logits_;
  const int length_;
  const float* largest_ = nullptr;
  size_t blocks_ = 0;
  float shift_ = 0, log_sum_ = 0;
  std::vector<Candidate> changed_;
};

// A total that the best C tokens of a sample's rows reach, or -inf if the search for it does not pay. The largest
// logits of C + (number of changed tokens) blocks of all rows reach it, and at least C of these are unchanged.
float least_total(const BeamTopKArguments<float>& a, const SearchedRow* rows);

// Checks all values but the logits.
void check_search(const BeamTopKArguments<float>& a);

// Writes the best C candidates of all samples, in the order of total, beam and place in the row. Each row is in this
// order already, so the rows are merged, and only what is returned is sorted.
void write_best(const BeamTopKArguments<float>& a, const std::vector<std::vector<Candidate>>& rows);

}  // namespace tightbeam
