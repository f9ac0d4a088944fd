// The estimates are written where the logits go, and the best one of each tile of columns is found while they are in
// the second cache. The tiles with the best C estimates give the logits that the best C tokens reach, and all tiles
// whose bounds reach these are multiplied as QuantizedMatMul does it, so that their logits have the same bits. The
// estimates that stay are below these logits.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/dynamic_quantize_matmul/integer_rows.h"
#include "ops/quantize_rows/arguments.h"
#include "ops/quantized_matmul/row_tiles.h"
#include "ops/screened_quantized_matmul/arguments.h"

namespace tightbeam {
namespace {

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
constexpr double UNIT = 1.0 / (1 << 24);   // relative rounding of one operation
constexpr double OPERATIONS = 64;          // more than those of a number of a head, beside its X sums
constexpr double SKEW = 1e-5;              // of the directions, as layout.py bounds it
constexpr double HALF_STEP = 0.52;         // error of an integer of a head, with the rounding of scale and factor
constexpr double SHORTEST = 1e-30;         // largest number of a head at least, as QuantizeRows takes it
constexpr double LONGEST = 1e15;           // so that no sum becomes infinite
constexpr double ABOVE = 1 + 1e-6;         // more than float32 and the sums of squares lose
constexpr long BYTES_AT_ONCE = 128 << 10;  // of estimates, which the second cache holds beside their weights
constexpr int FEWEST_TILES = 16;           // of a range of columns

double length_of(const float* numbers, int count) {
  double squares = 0;
  for (int i = 0; i < count; ++i) squares += static_cast<double>(numbers[i]) * numbers[i];
  return std::sqrt(squares);
}

// The best of 1 to 16 numbers.
float best_of(const float* numbers, int columns) { return *std::max_element(numbers, numbers + columns); }

// The rows as their integers give them, float32 [R, X].
std::vector<float> numbers_of(const QuantizedMatMulArguments<float>& a) {
  const int X = GROUP * a.groups;
  std::vector<float> numbers(static_cast<size_t>(a.R) * X);
  for (long row = 0; row < a.R; ++row) {
    const signed char* high = a.rows + row * a.digits * X;
    for (int x = 0; x < X; ++x)
      numbers[row * X + x] =
          a.row_scale[row] * static_cast<float>(a.digits == 2 ? 128 * high[x] + high[X + x] : high[x]);
  }
  return numbers;
}

// Writes the estimates, and finds the best one of each tile, [R, tiles].
void estimate(const ScreenedQuantizedMatMulArguments<float>& a, const float* head, float* best,
              const Parallel& parallel) {
  const QuantizedMatMulArguments<float>& whole = a.product.product;
  const int R = whole.R, Y = whole.Y, K = TILE_COLUMNS * a.screens, all = (Y - 1) / TILE_COLUMNS + 1;
  std::vector<signed char> integers(static_cast<size_t>(R) * K);
  std::vector<float> scale(static_cast<size_t>(R));
  quantize_rows({R, K, 1, 1, head, integers.data(), scale.data()}, parallel);
  const int together = std::max(FEWEST_TILES, static_cast<int>(BYTES_AT_ONCE / (TILE_COLUMNS * sizeof(float) * R)));
  parallel.for_each(static_cast<size_t>((all - 1) / together + 1), [&](size_t item) {
    const int from = static_cast<int>(item) * together, to = std::min(all, from + together);
    const long first = long{from} * TILE_COLUMNS;
    const int columns = static_cast<int>(std::min(long{to} * TILE_COLUMNS, long{Y}) - first);
    QuantizedMatMulArguments<float> part{};
    part.R = R;
    part.Y = columns;
    part.groups = K / GROUP;
    part.blocks = 1;
    part.row_step = K;
    part.row_scale_step = 1;
    part.products_step = Y;
    part.rows = integers.data();
    part.row_scale = scale.data();
    part.weights = a.integers + first * K;
    part.scale = a.integer_scale + first;
    part.bias = whole.bias + first;
    part.products = whole.products + first;
    quantized_matmul(part, Sequential());
    for (int row = 0; row < R; ++row)
      largest_of_columns(part.products + row * long{Y}, columns, best + long{row} * all + from);
  });
}

// Lengths of the parts of a row, by which the errors of columns are multiplied.
struct Lengths {
  float head, rest, rounding;
  bool bounded;

  // `numbers` [X] is the row as its integers give it, and `products` [K] its products with the directions.
  Lengths(const float* numbers, int X, const float* products, int K) {
    const double length = length_of(numbers, X) * ABOVE, found = length_of(products, K);
    const double lost = (X + OPERATIONS) * UNIT * std::sqrt(K) * length * (1 + SKEW);  // by the sums of the head
    const double within = std::max(0.0, found - lost);
    double largest = SHORTEST;
    for (int i = 0; i < K; ++i) largest = std::max(largest, static_cast<double>(std::fabs(products[i])));
    bounded = length < LONGEST && found < LONGEST;  // and not NaN
    head = static_cast<float>((found * ABOVE + lost) * ABOVE);
    rest = static_cast<float>(std::sqrt(std::max(0.0, length * length - (1 - SKEW) * within * within)) * ABOVE);
    rounding = static_cast<float>((HALF_STEP / 127 * std::sqrt(K) * largest + lost) * ABOVE);
  }

  // upper[i] = the most that a logit of tile i is, whose best estimate is best[i]; `error` is [4, tiles].
  void bound(const float* best, const float* error, long tiles, float* upper) const {
    const float of_head = head * static_cast<float>(ABOVE), of_rest = rest * static_cast<float>(ABOVE);
    const float of_rounding = rounding * static_cast<float>(ABOVE);
    for (long i = 0; i < tiles; ++i)
      upper[i] = best[i] + static_cast<float>(ABOVE) * (of_head * error[i] + of_rest * error[tiles + i] +
                                                        of_rounding * error[2 * tiles + i] + error[3 * tiles + i]);
  }
};

// The tiles of a row whose logits are computed.
class Choice {
 public:
  Choice(const ScreenedQuantizedMatMulArguments<float>& a, long row, const Lengths& lengths, float* best)
      : a_(a),
        lengths_(lengths),
        logits_(a.product.product.products + row * a.product.product.Y),
        best_(best),
        all_((a.product.product.Y - 1) / TILE_COLUMNS + 1) {
    changed_.reserve(static_cast<size_t>(a.search.P));
    // Tiles with tokens whose scores BeamTopK changes are computed, and say nothing of the best ones.
    a.search.each_changed(row, [&](long long token) {
      if (token < 0 || token >= a.product.product.Y) return;  // BeamTopK refuses it
      changed_.push_back(static_cast<int>(token / TILE_COLUMNS));
    });
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
  }

  // Writes the logits of the tiles that may hold one of the best C tokens, but gives up after `most` tiles. Returns how
  // many there are, or more than `most`.
  size_t write(const RowTiles& row, size_t most) const {
    const size_t C = static_cast<size_t>(a_.search.C);
    if (!lengths_.bounded || changed_.size() + C > std::min(most, static_cast<size_t>(all_))) return most + 1;
    std::vector<float> upper(static_cast<size_t>(all_));
    lengths_.bound(best_, a_.error, all_, upper.data());
    for (const int tile : changed_) {
      write(row, tile);
      best_[tile] = upper[tile] = MINUS_INFINITY;
    }
    float least = INFINITY;  // C different tokens reach it
    for (const int tile : best_tiles(C)) {
      least = std::min(least, write(row, tile));
      upper[tile] = MINUS_INFINITY;
    }
    if (!std::isfinite(least)) return most + 1;
    size_t count = changed_.size() + C;
    for (int tile = 0; tile < all_; ++tile)
      if (upper[tile] >= least) {
        if (++count > most) return count;
        write(row, tile);
      }
    return count;
  }

 private:
  // Writes the logits of a tile, and returns the best one.
  float write(const RowTiles& row, int tile) const {
    float* logits = logits_ + tile * TILE_COLUMNS;
    row.write(tile, logits);
    return best_of(logits, row.columns(tile));
  }

  // The tiles of the best estimates, in any order.
  std::vector<int> best_tiles(size_t count) const {
    if (count == 1) return {static_cast<int>(std::max_element(best_, best_ + all_) - best_)};
    std::vector<int> found(static_cast<size_t>(all_));
    std::iota(found.begin(), found.end(), 0);
    const auto better = [this](int left, int right) { return best_[left] > best_[right]; };
    std::nth_element(found.begin(), found.begin() + static_cast<long>(count) - 1, found.end(), better);
    found.resize(count);
    return found;
  }

  const ScreenedQuantizedMatMulArguments<float>& a_;
  const Lengths& lengths_;
  float* const logits_;
  float* const best_;  // [tiles], the best estimate of each; -inf for tiles of changed tokens
  const int all_;
  std::vector<int> changed_;
};

}  // namespace

void screened_quantized_matmul(const ScreenedQuantizedMatMulArguments<float>& a, const Parallel& parallel) {
  if (a.search.whole) return dynamic_quantize_matmul(a.product, parallel);
  QuantizedMatMulArguments<float> product = a.product.product;
  const int X = GROUP * product.groups, K = TILE_COLUMNS * a.screens, R = product.R;
  const size_t rows = static_cast<size_t>(R), all = (static_cast<size_t>(product.Y) - 1) / TILE_COLUMNS + 1;
  const IntegerRows integers(a.product.rows, product, parallel);
  const std::vector<float> numbers = numbers_of(product), nothing(static_cast<size_t>(K));
  std::vector<float> head(rows * K), best(rows * all);
  linear({R, X, K, numbers.data(), a.directions, nothing.data(), nullptr, 0, head.data()}, parallel);
  estimate(a, head.data(), best.data(), parallel);

  std::vector<size_t> counts(rows);
  parallel.for_each(rows, [&](size_t row) {
    const Lengths lengths(numbers.data() + row * X, X, head.data() + row * K, K);
    const Choice choice(a, static_cast<long>(row), lengths, best.data() + row * all);
    counts[row] = choice.write(RowTiles(product, static_cast<long>(row)), all / 2);
  });
  size_t count = 0;
  for (const size_t tiles : counts) count += tiles;
  if (2 * count > all) quantized_matmul(product, parallel);
}

}  // namespace tightbeam
