// Scores and sums of values are products of integers (kernels/cpu/quantized.h).
//
// Queries and weights are floats, so each row of them is split into two rows of 8 bits, a high one and a low one. That
// keeps 15 bits of a query's largest number and 14 bits of its largest weight, so the 8 bits of the cached rows decide
// the error. The cached rows are transposed into tiles on the way: four numbers each of 16 keys side by side, or four
// positions each of 16 columns of values. All scores of a query are computed before its first value, since the weights
// must be known when they are split. Masked positions are never read.
#include "kernels/cpu/attention/attend_bytes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/attention/counted_positions.h"
#include "kernels/cpu/attention/history_bytes.h"
#include "kernels/cpu/attention/shared_queries.h"
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/quantized.h"
#include "kernels/cpu/scratch.h"

namespace tightbeam {
namespace {

constexpr size_t ITEMS = 16;        // keep all threads busy; in an item, each head fetches the next one's rows
constexpr long STRETCH = 128;       // groups of two tiles of keys that fit the first cache
constexpr long VALUE_STRETCH = 32;  // groups of four tiles of values that fit it, with the next ones
constexpr int ENOUGH_ITEMS = 4, FEWEST_QUERIES = 16;

// Rows of floats, split into high and low rows of integers, and packed for the products in parts of a few rows.
class SplitRows {
 public:
  static size_t bytes(int rows, long width) {
    const size_t integers = static_cast<size_t>(rows) * 2 * up(width, GROUP);
    return Scratch::bytes_of<signed char>(integers) +
           Scratch::bytes_of<unsigned char>(integers / GROUP * quantized().group_bytes) +
           Scratch::bytes_of<int>(static_cast<size_t>(rows) * 2);
  }

  SplitRows(Scratch& scratch, int rows, long width)
      : kernels_(quantized()),
        rows_(rows),
        width_(up(width, GROUP)),
        parts_((rows - 1) / most() + 1),
        each_((rows - 1) / parts_ + 1),
        integers_(scratch.take<signed char>(static_cast<size_t>(rows) * 2 * width_)),
        packed_(scratch.take<unsigned char>(static_cast<size_t>(rows) * 2 * groups() * kernels_.group_bytes)),
        corrections_(scratch.take<int>(static_cast<size_t>(rows) * 2)) {}

  long groups() const { return width_ / GROUP; }
  int parts() const { return parts_; }
  int first(int part) const { return std::min(rows_, part * each_); }
  int count(int part) const { return first(part + 1) - first(part); }

  // Splits row i of a part. Returns the scale of its integers; NaN if a number is NaN or infinite.
  float set(int part, int i, const float* numbers, long count) {
    signed char* const high = row(part, i);
    signed char* const low = row(part, this->count(part) + i);
    std::memset(high, 0, width_);
    std::memset(low, 0, width_);
    const float largest = largest_of(kernels_.largest(numbers, count));
    if (largest == largest) quantized().split(numbers, count, FINEST / largest, high, low);
    return largest / FINEST;
  }

  void pack() {
    for (int part = 0; part < parts(); ++part) {
      const int rows = 2 * count(part);
      kernels_.pack(row(part, 0), width_, rows, groups(), packed_ + offset(part, 0));
      for (int i = 0; i < rows; ++i) corrections_[2 * first(part) + i] = kernels_.correction(row(part, i), width_);
    }
  }

  // Products of a part, [2 x count, 16 x tiles], with the groups [from, from + groups) of `count` tiles. Meanwhile as
  // many bytes as the tiles have are prefetched from `next` on.
  void multiply(int part, const unsigned char* tiles, int count, long tile_bytes, long from, long groups, int* products,
                const signed char* next) const {
    kernels_.multiply({packed_ + offset(part, from), 2 * this->count(part), count, tiles, tile_bytes, groups,
                       from == 0 ? corrections_ + 2 * first(part) : nullptr, products,
                       reinterpret_cast<const unsigned char*>(next), TILE_STEP});
  }

 private:
  // How many rows are multiplied together; each is a high and a low one.
  int most() const {
    const int of_one = kernels_.rows_of_one, of_two = kernels_.rows_of_two;
    return (of_two > 0 ? std::min(of_one, of_two) : of_one) / 2;
  }
  signed char* row(int part, int i) const { return integers_ + (2L * first(part) + i) * width_; }
  long offset(int part, long group) const {
    return (2L * first(part) * groups() + group * 2 * count(part)) * kernels_.group_bytes;
  }

  const Quantized& kernels_;
  int rows_;
  long width_;
  int parts_, each_;  // each_: rows of a part; the last one may have fewer
  signed char* integers_;
  unsigned char* packed_;
  int* corrections_;
};

// The attention of some queries of sample b that share key head g, over the positions that count.
class Item {
 public:
  Item(const ByteSource& source, const std::vector<int>& counted, size_t b, size_t g, int first, int queries,
       Scratch& scratch)
      : s_(source),
        counted_(counted),
        b_(b),
        g_(g),
        first_(first),
        Q_(queries),
        K_(source.keys.width),
        V_(source.values.width),
        positions_(static_cast<int>(counted.size())),
        tiles_(quantized().rows_of_two > 0 ? 2 : 1),
        stride_(up(positions_, 2 * TILE_COLUMNS)),
        bytes_(byte_rows()),
        math_(math()),
        scratch_(scratch) {}

  // Meanwhile the keys of the next head are prefetched, if it has one.
  void run(bool has_next) {
    if (positions_ == 0) {
      write_zeros();
      for (int q = 0; q < Q_; ++q)
        if (s_.lse != nullptr) s_.lse[place(q)] = -__builtin_inff();
      return;
    }
    const size_t padded = static_cast<size_t>(stride_);
    scratch_.reserve(SplitRows::bytes(Q_, K_) + SplitRows::bytes(Q_, positions_) + Scratch::bytes_of<int>(padded) +
                     2 * Scratch::bytes_of<float>(padded) + Scratch::bytes_of<float>(Q_ * padded) +
                     3 * Scratch::bytes_of<float>(Q_) + 4 * STRETCH * TILE_STEP +
                     Scratch::bytes_of<int>(static_cast<size_t>(Q_) * 2 * 4 * TILE_COLUMNS));
    places_ = scratch_.take<int>(padded);
    std::copy_n(counted_.data(), positions_, places_);
    std::fill(places_ + positions_, places_ + stride_, places_[positions_ - 1]);  // fills the last tile
    key_scales_ = scales(s_.keys);
    value_scales_ = scales(s_.values);
    scores_ = scratch_.take<float>(Q_ * padded);
    row_scales_ = scratch_.take<float>(Q_);
    row_sums_ = scratch_.take<float>(Q_);
    lse_ = scratch_.take<float>(Q_);
    tile_ = scratch_.take<unsigned char>(4 * STRETCH * TILE_STEP);
    products_ = scratch_.take<int>(static_cast<size_t>(Q_) * 2 * 4 * TILE_COLUMNS);
    has_next_ = has_next;
    score();
    weigh();
    if (s_.weight_threshold > 0) drop_small_weights();
    if (positions_ > 0)
      add_values();
    else
      write_zeros();
    for (int q = 0; q < Q_; ++q)
      if (s_.lse != nullptr) s_.lse[place(q)] = lse_[q];
  }

 private:
  // scores_[q, n] = (query q . key n) x scale
  void score() {
    SplitRows queries(scratch_, Q_, K_);
    for (int part = 0; part < queries.parts(); ++part)
      for (int i = 0; i < queries.count(part); ++i) {
        const int q = queries.first(part) + i;
        row_scales_[q] = queries.set(part, i, s_.query + place(q) * K_, K_) * s_.scale;
      }
    queries.pack();
    const long groups = queries.groups();
    const signed char* const values = s_.values.data == s_.keys.data ? nullptr : head(s_.values, g_);
    for (int start = 0; start < positions_; start += tiles_ * TILE_COLUMNS) {
      const int tiles = start + TILE_COLUMNS < positions_ ? tiles_ : 1, columns = tiles * TILE_COLUMNS;
      const signed char* const next = row(s_.keys, start + tiles * TILE_COLUMNS);
      for (long from = 0; from < groups; from += STRETCH) {
        const long count = std::min(STRETCH, groups - from), tile_bytes = up(count * GROUP, CHUNK) * TILE_COLUMNS;
        for (int tile = 0; tile < tiles; ++tile) {
          const PlacedRows keys = rows(s_.keys, start + tile * TILE_COLUMNS, values, s_.values);
          bytes_.transpose_keys(keys, from * GROUP, std::min(count * GROUP, K_ - from * GROUP),
                                tile_ + tile * tile_bytes);
        }
        for (int part = 0; part < queries.parts(); ++part)
          queries.multiply(part, tile_, tiles, tile_bytes, from, count, products_ + 2 * queries.first(part) * columns,
                           next);
      }
      for (int part = 0; part < queries.parts(); ++part)
        for (int i = 0; i < queries.count(part); ++i) {
          const int q = queries.first(part) + i;
          const int* const high = products_ + (2 * queries.first(part) + i) * columns;
          bytes_.combine(high, high + queries.count(part) * columns, std::min(columns, positions_ - start),
                         row_scales_[q], key_scales_ + start, scores_ + q * stride_ + start);
        }
    }
  }

  // Caps the scores, adds the biases, and takes the exponentials.
  void weigh() {
    for (int q = 0; q < Q_; ++q) {
      float* const row = scores_ + q * stride_;
      cap_scores(row, positions_, s_.softcap);
      if (s_.key_bias != nullptr) {
        const float* const bias = s_.key_bias + place(q) % s_.H * s_.key_bias_positions;
        for (int n = 0; n < positions_; ++n) row[n] += bias[places_[n]];
      }
      const float row_max = math_.row_max(row, positions_);
      row_sums_[q] = history_bytes().exponentials(row, positions_, row_max);
      lse_[q] = row_max + std::log(row_sums_[q]);
    }
  }

  // Drops the positions where every query's weight is below the threshold. A weight below it counts as 0.
  void drop_small_weights() {
    int count = 0;
    for (int n = 0; n < positions_; ++n) {
      bool counts = false;
      for (int q = 0; q < Q_; ++q) {
        const float weight = scores_[q * stride_ + n];
        const bool below = weight < s_.weight_threshold * row_sums_[q];  // false for NaN, which must reach the output
        scores_[q * stride_ + count] = below ? 0 : weight;
        counts = counts || !below;
      }
      places_[count] = places_[n];
      value_scales_[count] = value_scales_[n];
      count += counts;
    }
    positions_ = count;
  }

  // output[q, v] = sum over n of weight[q, n] x value[n, v]
  void add_values() {
    SplitRows weights(scratch_, Q_, positions_);
    for (int part = 0; part < weights.parts(); ++part)
      for (int i = 0; i < weights.count(part); ++i) {
        const int q = weights.first(part) + i;
        float* const row = scores_ + q * stride_;
        bytes_.multiply(row, value_scales_, positions_);
        row_scales_[q] = weights.set(part, i, row, positions_) / row_sums_[q];
      }
    weights.pack();
    const long groups = weights.groups();
    for (long column = 0; column < V_; column += CHUNK) {
      const int columns = static_cast<int>(std::min<long>(CHUNK, V_ - column));
      const int tiles = (columns - 1) / TILE_COLUMNS + 1;
      const auto products = [&](int tile, int part) {  // [2 x count, 16 x tiles that are multiplied at once]
        const int together = std::min(tiles_, tiles - tile);
        return products_ + static_cast<long>(tile) * 2 * Q_ * TILE_COLUMNS +
               2L * weights.first(part) * together * TILE_COLUMNS;
      };
      for (long from = 0; from < groups; from += VALUE_STRETCH) {
        const long count = std::min(VALUE_STRETCH, groups - from), tile_bytes = count * TILE_STEP;
        const signed char* const next = row(s_.values, (from + count) * GROUP) + column;
        bytes_.transpose_values(rows(s_.values, from * GROUP, has_next_ ? head(s_.keys, g_ + 1) : nullptr, s_.keys),
                                count, column, columns, tile_, tile_bytes);
        for (int tile = 0; tile < tiles; tile += tiles_)
          for (int part = 0; part < weights.parts(); ++part)
            weights.multiply(part, tile_ + tile * tile_bytes, std::min(tiles_, tiles - tile), tile_bytes, from, count,
                             products(tile, part), next + tile * tile_bytes);
      }
      if (columns == CHUNK)
        for (int part = 0; part < weights.parts(); ++part)
          for (int row = 0; row < 2 * weights.count(part); ++row) {
            int* sums[CHUNK / TILE_COLUMNS];
            for (int tile = 0; tile < tiles; ++tile)
              sums[tile] = products(tile / tiles_ * tiles_, part) + (row * tiles_ + tile % tiles_) * TILE_COLUMNS;
            bytes_.sort_columns(sums);
          }
      for (int tile = 0; tile < tiles; tile += tiles_)
        for (int part = 0; part < weights.parts(); ++part)
          for (int i = 0; i < weights.count(part); ++i) {
            const int q = weights.first(part) + i, width = std::min(tiles_, tiles - tile) * TILE_COLUMNS;
            const int* const high = products(tile, part) + static_cast<long>(i) * width;
            bytes_.combine(high, high + static_cast<long>(weights.count(part)) * width,
                           std::min(width, columns - tile * TILE_COLUMNS), row_scales_[q], nullptr,
                           s_.output + place(q) * V_ + column + tile * TILE_COLUMNS);
          }
    }
  }

  void write_zeros() const {
    for (int q = 0; q < Q_; ++q) std::fill_n(s_.output + place(q) * V_, V_, 0.0f);
  }

  // Index of a query in [R, H].
  size_t place(int q) const { return query_place(s_, b_, g_, first_ + q); }

  // Row of the n-th position that counts, or of the last one if n is beyond it.
  const signed char* row(const ByteSourceRows& all, long n) const {
    return head(all, g_) + places_[std::min<long>(n, positions_ - 1)] * all.position;
  }

  const signed char* head(const ByteSourceRows& all, size_t g) const {
    return all.data + b_ * all.sample + g * all.head;
  }

  // Rows from the `start`-th position that counts. Rows of `other` are prefetched meanwhile, from `next` on.
  PlacedRows rows(const ByteSourceRows& all, long start, const signed char* next, const ByteSourceRows& other) const {
    return {head(all, g_), static_cast<long>(all.position), places_ + start, next, static_cast<long>(other.position)};
  }

  float* scales(const ByteSourceRows& all) const {
    float* const scales = scratch_.take<float>(stride_);
    const float* const own = all.scales + b_ * all.scale_sample + g_ * all.scale_head;
    if (are_first())
      std::copy_n(own, positions_, scales);
    else
      for (int n = 0; n < positions_; ++n) scales[n] = own[counted_[n]];
    return scales;
  }

  // True if all positions before the last one that counts do count too: the others are padding.
  bool are_first() const { return counted_.back() == positions_ - 1; }

  const ByteSource& s_;
  const std::vector<int>& counted_;
  const size_t b_, g_;
  const int first_, Q_, K_, V_;
  int positions_;
  const int tiles_;  // how many are multiplied at once
  const long stride_;
  const ByteRows& bytes_;
  const Math& math_;
  Scratch& scratch_;
  int* places_;
  float *key_scales_, *value_scales_, *scores_, *row_scales_, *row_sums_, *lse_;
  unsigned char* tile_;
  int* products_;
  bool has_next_;
};

}  // namespace

void attend_bytes(const ByteSource& s, const Parallel& parallel) {
  const int queries = s.M * (s.H / s.G);  // of one sample and key head
  const int parts = query_parts(s.B * s.G, queries, ENOUGH_ITEMS, FEWEST_QUERIES);
  const size_t all = static_cast<size_t>(s.B) * s.G * parts, each = std::max<size_t>(1, all / ITEMS);
  const std::vector<std::vector<int>> counted = counted_positions(s.mask, s.B, s.N);
  parallel.for_each((all - 1) / each + 1, [&](size_t item) {
    static thread_local Scratch scratch;
    for (size_t i = item * each, end = std::min(all, i + each); i < end; ++i) {
      const size_t b = i / parts / s.G, g = i / parts % s.G, part = i % parts;
      const int first = static_cast<int>(queries * part / parts);
      const int count = static_cast<int>(queries * (part + 1) / parts) - first;
      const bool has_next = i + 1 < end && g + 1 < static_cast<size_t>(s.G) && parts == 1;
      Item(s, counted[b], b, g, first, count, scratch).run(has_next);
    }
  });
}

}  // namespace tightbeam
