// The queries of all beams that share a key head go over its rows together, tile by tile, so that each row is read from
// memory once; those of several heads, if all heads' values are the same rows (keys alone). Masked positions are never
// read.
#include "kernels/cpu/attention/attend_source.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/counted_positions.h"
#include "kernels/cpu/attention/shared_queries.h"

namespace tightbeam {
namespace {

constexpr int TILE = Attention::TILE;
constexpr int ENOUGH_ITEMS = 8, FEWEST_QUERIES = 4;

// The attention of some queries of sample b over the positions that count: for each of `heads` key heads from g on its
// queries [first, first + queries).
class Item {
 public:
  Item(const Source& source, const std::vector<int>& counted, size_t b, size_t g, int heads, int first, int queries)
      : s_(source),
        counted_(counted),
        b_(b),
        g_(g),
        heads_(heads),
        first_(first),
        by_head_(queries),
        Q_(heads * queries),
        K_(source.keys.width),
        V_(source.values.width),
        positions_(static_cast<int>(counted.size())),
        keys_(rows(source.keys)),
        values_(rows(source.values)),
        rotated_(source.rotation ? static_cast<size_t>(TILE) * K_ : 0) {}

  void run() {
    if (s_.weight_threshold > 0)
      run_with_threshold();
    else
      run_online();
  }

 private:
  // One pass over keys and values, with an online softmax.
  void run_online() {
    Attention attention(Q_, K_, V_, s_.scale);
    for (int q = 0; q < Q_; ++q) attention.set_query(q, s_.query + place(q) * K_);
    for (int start = 0; start < positions_; start += TILE) {
      const int count = std::min(TILE, positions_ - start);
      Upcoming values{&values_[start], count, V_};
      for (int head = 0; head < heads_; ++head, values.count = 0)
        attention.dot(head * by_head_, by_head_, keys_of(head, start, count), count, values);
      for (int q = 0; q < Q_; ++q) finish(attention.scores(q), q, start, count);
      attention.weigh(0, Q_, count);
      attention.add(0, Q_, &values_[start], count, V_, 0, next(keys_, start + count, K_));
    }
    for (int q = 0; q < Q_; ++q) {
      attention.write_output(q, s_.output + place(q) * V_);
      if (s_.lse != nullptr) s_.lse[place(q)] = attention.lse(q);
    }
  }

  // Two passes: the keys of all positions, so that the weights are known, then the values of the positions where some
  // query's weight reaches the threshold.
  void run_with_threshold() {
    const Math& math = tightbeam::math();
    std::vector<float> queries(static_cast<size_t>(Q_) * K_), weights(static_cast<size_t>(Q_) * positions_);
    for (int q = 0; q < Q_; ++q) std::copy_n(s_.query + place(q) * K_, K_, &queries[static_cast<size_t>(q) * K_]);
    for (int start = 0; start < positions_; start += TILE) {
      const int count = std::min(TILE, positions_ - start);
      for (int head = 0; head < heads_; ++head) {
        const size_t q = static_cast<size_t>(head) * by_head_;
        math.dot(&queries[q * K_], by_head_, keys_of(head, start, count), count, K_, &weights[q * positions_ + start],
                 positions_, next(keys_, start + count, K_));
      }
    }
    std::vector<float> row_sums(Q_);
    for (int q = 0; q < Q_; ++q) {
      float* const row = weights.data() + static_cast<size_t>(q) * positions_;
      math.scale(row, positions_, s_.scale);
      finish(row, q, 0, positions_);
      const float row_max = math.row_max(row, positions_);
      row_sums[q] = math.exponentials(row, positions_, row_max);
      if (s_.lse != nullptr) s_.lse[place(q)] = row_max + std::log(row_sums[q]);
    }

    std::vector<float> sums(static_cast<size_t>(Q_) * V_), counted_weights(static_cast<size_t>(Q_) * TILE);
    std::vector<const float*> counted;
    const auto add = [&] {
      math.add_weighted(counted_weights.data(), TILE, Q_, counted.data(), static_cast<int>(counted.size()), V_,
                        sums.data(), V_, {});
      counted.clear();
    };
    for (int n = 0; n < positions_; ++n) {
      bool counts = false;
      for (int q = 0; q < Q_; ++q) {
        const float weight = weights[static_cast<size_t>(q) * positions_ + n];
        const bool below = weight < s_.weight_threshold * row_sums[q];  // false for NaN, which must reach the output
        counted_weights[static_cast<size_t>(q) * TILE + counted.size()] = below ? 0 : weight;
        counts = counts || !below;
      }
      if (counts) counted.push_back(values_[n]);
      if (counted.size() == TILE) add();
    }
    add();
    for (int q = 0; q < Q_; ++q) {
      const float factor = row_sums[q] == 0 ? 0 : 1 / row_sums[q];
      for (int v = 0; v < V_; ++v) s_.output[place(q) * V_ + v] = sums[static_cast<size_t>(q) * V_ + v] * factor;
    }
  }

  // Index of a query in [R, H].
  size_t place(int q) const { return query_place(s_, b_, g_ + q / by_head_, first_ + q % by_head_); }

  std::vector<const float*> rows(const SourceRows& all) const {
    std::vector<const float*> rows(positions_);
    for (int n = 0; n < positions_; ++n)
      rows[n] = all.data + b_ * all.sample + g_ * all.head + counted_[n] * all.position;
    return rows;
  }

  Upcoming next(const std::vector<const float*>& rows, int from, int width) const {
    return {rows.data() + from, std::min(TILE, positions_ - from), width};
  }

  // The keys of a tile for the item's next head, rotated if the source has a rotation, until the next call.
  const float* const* keys_of(int head, int start, int count) {
    for (int i = 0; i < count; ++i) {
      tile_[i] = keys_[start + i] + head * s_.keys.head;
      if (!s_.rotation) continue;
      float* const rotated = &rotated_[static_cast<size_t>(i) * K_];
      s_.rotation.rotate(tile_[i], rotated, K_, counted_[start + i]);
      tile_[i] = rotated;
    }
    return tile_;
  }

  // Finishes query q's scores at positions from `start` on: applies the keys' factors, the cap and the biases.
  void finish(float* scores, int q, int start, int count) const {
    if (s_.key_scales != nullptr) {
      const float* const factors = s_.key_scales + (b_ * s_.G + g_ + q / by_head_) * s_.N;
      for (int i = 0; i < count; ++i) scores[i] *= factors[counted_[start + i]];
    }
    cap_scores(scores, count, s_.softcap);
    if (s_.key_bias == nullptr) return;
    const float* const bias = s_.key_bias + place(q) % s_.H * s_.key_bias_positions;
    for (int i = 0; i < count; ++i) scores[i] += bias[counted_[start + i]];
  }

  const Source& s_;
  const std::vector<int>& counted_;
  const size_t b_, g_;
  const int heads_, first_, by_head_, Q_, K_, V_, positions_;
  const std::vector<const float*> keys_;
  const std::vector<const float*> values_;
  const float* tile_[TILE] = {};
  std::vector<float> rotated_;
};

}  // namespace

void attend_source(const Source& s, const Parallel& parallel) {
  const int queries = s.M * (s.H / s.G);  // of one sample and key head
  const std::vector<std::vector<int>> counted = counted_positions(s.mask, s.B, s.N);
  if (s.values.head == 0 && s.G > 1) {
    const int parts = std::clamp(ENOUGH_ITEMS / s.B, 1, s.G);
    parallel.for_each(static_cast<size_t>(s.B) * parts, [&](size_t item) {
      const size_t b = item / parts, part = item % parts;
      const size_t first = s.G * part / parts, heads = s.G * (part + 1) / parts - first;
      Item(s, counted[b], b, first, static_cast<int>(heads), 0, queries).run();
    });
    return;
  }
  const int parts = query_parts(s.B * s.G, queries, ENOUGH_ITEMS, FEWEST_QUERIES);
  parallel.for_each(static_cast<size_t>(s.B) * s.G * parts, [&](size_t item) {
    const size_t b = item / parts / s.G, g = item / parts % s.G, part = item % parts;
    const int first = static_cast<int>(queries * part / parts);
    const int count = static_cast<int>(queries * (part + 1) / parts) - first;
    Item(s, counted[b], b, g, 1, first, count).run();
  });
}

}  // namespace tightbeam
