// Sampling of a token from a full row of scores, for searches that need more than a step's candidates
// (deploy/search/warpers.py). The row is read once, for the sums of its blocks; then one block is read again.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/math.h"
#include "kernels/exported.h"

namespace tightbeam {
namespace {

constexpr size_t BLOCK = 256;
constexpr double SMALLEST = 1e-20;  // if the sum of weights is below, `best` is too far above the row

// The weights exp((score - best) / temperature) of the tokens, in blocks.
class Weights {
 public:
  Weights(const float* scores, size_t count, float best, float temperature)
      : scores_(scores), count_(count), best_(best), temperature_(temperature) {}

  double sum(size_t block) {
    const size_t own = size(block);
    if (temperature_ == 1) return math().sum_of_exponentials(scores_ + block * BLOCK, own, best_);
    return math().sum_of_exponentials(scaled(block), own, 0);
  }

  const float* of(size_t block) {
    math().exponentials(scaled(block), size(block), 0);
    return numbers_;
  }

  // Fills in the sum of all weights up to the end of each block; returns the last one.
  double sums(std::vector<double>& ends) {
    double total = 0;
    for (size_t block = 0; block < ends.size(); ++block) ends[block] = total += sum(block);
    return total;
  }

  size_t size(size_t block) const { return std::min(BLOCK, count_ - block * BLOCK); }

 private:
  float* scaled(size_t block) {
    for (size_t i = 0; i < size(block); ++i) numbers_[i] = (scores_[block * BLOCK + i] - best_) / temperature_;
    return numbers_;
  }

  const float* const scores_;
  const size_t count_;
  const float best_, temperature_;
  float numbers_[BLOCK];
};

}  // namespace
}  // namespace tightbeam

// Samples a token. The tokens divide the range 0 to 1 in their order, in proportion to their weights; the result is the
// token whose part holds `uniform`, or -1 if no score is finite. `best` is about the largest score, or NaN.
TIGHTBEAM_EXPORT long long tightbeam_draw(const float* scores, long long count, float best, float temperature,
                                          double uniform) {
  using namespace tightbeam;
  const size_t size = static_cast<size_t>(count);
  std::vector<double> ends((size + BLOCK - 1) / BLOCK);
  double total = 0;
  if (std::isfinite(best)) total = Weights(scores, size, best, temperature).sums(ends);
  if (!(total >= SMALLEST && total <= 2.0 * static_cast<double>(size))) {  // `best` is NaN, or far from the row
    best = math().row_max(scores, size);
    if (!std::isfinite(best)) return -1;
    total = Weights(scores, size, best, temperature).sums(ends);
  }
  const double below = std::min(uniform * total, std::nextafter(total, 0));  // the product may round up to the total
  const size_t block = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), below) - ends.begin());
  Weights weights(scores, size, best, temperature);
  const float* own = weights.of(block);
  double sum = block == 0 ? 0 : ends[block - 1];
  size_t last = 0;
  for (size_t i = 0; i < weights.size(block); ++i) {
    if (own[i] > 0) last = i;
    sum += own[i];
    if (sum > below) break;
  }
  return static_cast<long long>(block * BLOCK + last);
}
