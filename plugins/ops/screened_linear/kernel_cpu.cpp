// The estimates are written where the logits go. Two passes over a row's estimates follow: the first finds a number
// that the best C tokens reach, and the second the tiles of columns whose bounds reach it. These tiles are multiplied
// as Linear does it, so that their logits have the same bits.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/parallel.h"
#include "ops/screened_linear/arguments.h"

namespace tightbeam {
namespace {

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
constexpr float OF_BIAS = 1e-5f;        // rounding that the bias adds to an estimate and to a logit, as a share of it
constexpr float OF_UNDERFLOW = 1e-30f;  // more than all numbers that become zero could add
constexpr float SHORTEST = 1e-30f;      // length of a row, as QuantizeRows takes it
constexpr float LONGEST = 1e15f;        // so that no sum becomes infinite

// The estimates of a row, with a proven bound for each.
class Bounds {
 public:
  Bounds(const ScreenedLinearArguments<float>& a, long row)
      : a_(a), row_(row), estimates_(a.product.products + row * a.product.Y) {
    double squares = 0;
    for (int x = 0; x < a.product.X; ++x) {
      const double number = a.product.rows[row * a.product.X + x];
      squares += number * number;
    }
    length_ = std::max(static_cast<float>(std::sqrt(squares) * (1 + 1e-6)), SHORTEST);
  }

  // The tiles of columns that may hold one of the best C tokens. Returns false if the row has no bounds.
  bool find(std::vector<int>& tiles) const {
    if (!(length_ < LONGEST)) return false;  // or NaN
    const float least = least_of_best();
    if (!std::isfinite(least)) return false;
    const int Y = a_.product.Y;
    for (int first = 0; first < Y; first += TILE_COLUMNS)
      if (reaches(first, std::min(TILE_COLUMNS, Y - first), least)) tiles.push_back(first / TILE_COLUMNS);
    return true;
  }

 private:
  // By how much the logit of a token may differ from its estimate.
  struct Error {
    float length;
    const float *error, *bias;
    float operator()(int token) const {
      return length * error[token] + OF_BIAS * std::fabs(bias[token]) + OF_UNDERFLOW;
    }
  };

  Error error() const { return {length_, a_.error, a_.product.bias}; }

  bool reaches(int first, int columns, float least) const {
    const Error error = this->error();
    const float* estimates = estimates_;
    int found = 0;
    if (columns == TILE_COLUMNS)
      for (int i = 0; i < TILE_COLUMNS; ++i) found |= estimates[first + i] + error(first + i) >= least;
    else
      for (int i = 0; i < columns; ++i) found |= estimates[first + i] + error(first + i) >= least;
    return found != 0;
  }

  // A number that the logits of the best C tokens reach, not counting the tokens whose scores BeamTopK changes. The
  // best of every 64th column are as many different tokens.
  float least_of_best() const {
    std::vector<std::pair<int, float>> changed;
    a_.search.each_changed(row_, [&](long long token) {
      if (token < 0 || token >= a_.product.Y) return;  // BeamTopK refuses it
      changed.emplace_back(static_cast<int>(token), estimates_[token]);
      estimates_[token] = MINUS_INFINITY;
    });
    const Error error = this->error();
    const float* estimates = estimates_;
    float best[SCREENED];
    std::fill(best, best + SCREENED, MINUS_INFINITY);
    const int Y = a_.product.Y, whole = Y / SCREENED * SCREENED;
    for (int first = 0; first < whole; first += SCREENED)
      for (int i = 0; i < SCREENED; ++i) {
        const float lower = estimates[first + i] - error(first + i);
        best[i] = lower > best[i] ? lower : best[i];
      }
    for (int token = whole; token < Y; ++token)
      best[token - whole] = std::max(best[token - whole], estimates[token] - error(token));
    // A token may be changed twice, so that its first estimate is restored last.
    for (auto entry = changed.rbegin(); entry != changed.rend(); ++entry) estimates_[entry->first] = entry->second;
    std::nth_element(best, best + (a_.search.C - 1), best + SCREENED, std::greater<float>());
    return best[a_.search.C - 1];
  }

  const ScreenedLinearArguments<float>& a_;
  const long row_;
  float* const estimates_;
  float length_;
};

// Writes a row's logits of some tiles of columns, and -inf for all other columns.
void write(const LinearArguments<float>& a, long row, const std::vector<int>& tiles) {
  const LinearKernels& kernels = linear_kernels();
  const long step = long{TILE_COLUMNS} * a.X;
  float* logits = a.products + row * a.Y;
  std::fill(logits, logits + a.Y, MINUS_INFINITY);
  alignas(LINE) float sums[TILE_COLUMNS];
  for (size_t i = 0; i < tiles.size(); ++i) {
    const int first = tiles[i] * TILE_COLUMNS, columns = std::min(TILE_COLUMNS, a.Y - first);
    const float* next = a.weights + tiles[std::min(i + 1, tiles.size() - 1)] * step;
    kernels.multiply({a.rows + row * a.X, 1, a.weights + tiles[i] * step, step, 1, a.X, true, sums, next, 1});
    kernels.finish({sums, TILE_COLUMNS, 1, columns, a.bias + first, nullptr, 0, logits + first, a.Y});
  }
}

}  // namespace

void screened_linear(const ScreenedLinearArguments<float>& a, const Parallel& parallel) {
  if (a.search.whole) return linear(a.product, parallel);
  dynamic_quantize_matmul(a.estimate, parallel);
  const size_t R = static_cast<size_t>(a.product.R), all = (static_cast<size_t>(a.product.Y) - 1) / TILE_COLUMNS + 1;
  std::vector<std::vector<int>> tiles(R);
  std::vector<char> bounded(R);
  parallel.for_each(R, [&](size_t row) {
    tiles[row].clear();
    bounded[row] = Bounds(a, static_cast<long>(row)).find(tiles[row]);
  });
  size_t count = 0;
  for (size_t row = 0; row < R; ++row) count += bounded[row] ? tiles[row].size() : all;
  if (2 * count > all) return linear(a.product, parallel);
  parallel.for_each(R, [&](size_t row) { write(a.product, static_cast<long>(row), tiles[row]); });
}

}  // namespace tightbeam
