// A query's scores at all positions are computed before its first weight, and each of its sums has one order. So its
// result depends neither on the positions that it shares with other beams nor on the instruction set
// (kernels/cpu/attention/history_bytes.h).
#include "kernels/cpu/attention/attend_history_bytes.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention/history_bytes.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/quantized.h"
#include "kernels/cpu/scratch.h"

namespace tightbeam {
namespace {

constexpr int TILE = 32;  // positions that are processed together
constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

long whole(long count) { return up(count, SUMMED_TOGETHER); }

// The attention of the queries of sample b that share key head g: all M beams, in order.
class Item {
 public:
  Item(const ByteHistory& h, size_t b, size_t g, Scratch& scratch)
      : h_(h),
        b_(b),
        g_(g),
        heads_(h.H / h.G),
        Q_(h.M * heads_),
        V_(h.values.width),
        newest_(h.lengths[b] - 1),
        oldest_(h.oldest(b)),
        key_width_(whole(h.keys.width)),
        value_width_(whole(V_)),
        stride_(whole(newest_ - oldest_ + 2)) {
    scratch.reserve(Scratch::bytes_of<float>(Q_ * key_width_) + Scratch::bytes_of<float>(Q_ * value_width_) +
                    Scratch::bytes_of<float>(Q_ * stride_) + Scratch::bytes_of<float>(Q_) +
                    Scratch::bytes_of<float>(static_cast<size_t>(Q_) * TILE));
    queries_ = scratch.take<float>(Q_ * key_width_);
    sums_ = scratch.take<float>(Q_ * value_width_);
    scores_ = scratch.take<float>(Q_ * stride_);
    row_sums_ = scratch.take<float>(Q_);
    weights_ = scratch.take<float>(static_cast<size_t>(Q_) * TILE);
  }

  void run() {
    for (int m = 0; m < h_.M; ++m) {
      write(h_.keys, m);
      write(h_.values, m);
      start(m);
    }
    for_each_tile([this](int m, int beams, int t, int count) { score(m, beams, t, count); });
    for (int q = 0; q < Q_; ++q) weigh(q);
    for_each_tile([this](int m, int beams, int t, int count) { add(m, beams, t, count); });
    for (int q = 0; q < Q_; ++q) write_output(q);
  }

 private:
  // Calls run(m, beams, t, count) for the positions that beams [m, m + beams) share, and for those of each beam alone.
  template <class Run>
  void for_each_tile(const Run& run) const {
    const int diverging = h_.end_of_shared(b_, oldest_);
    for (int t = oldest_; t < diverging; t += TILE) run(0, h_.M, t, std::min(TILE, diverging - t));
    for (int m = 0; m < h_.M; ++m)
      for (int t = diverging; t <= newest_; t += TILE) run(m, 1, t, std::min(TILE, newest_ + 1 - t));
  }

  size_t place(int q) const { return h_.row(b_, q / heads_) * h_.H + g_ * heads_ + q % heads_; }

  // Index in [R, G, T_max] of position t of beam m's history, for key head g.
  size_t position(int m, size_t g, int t) const { return (h_.row(b_, h_.slots(b_, m)[t]) * h_.G + g) * h_.T_max + t; }

  // Quantises the new row of beam m like QuantizeRows.
  void write(const ByteHistoryRows& rows, int m) const {
    const float* const row = rows.row + h_.row(b_, m) * rows.row_stride + g_ * rows.width;
    const size_t place = position(m, g_, newest_);
    signed char* const integers = rows.cache + place * rows.width;
    const float largest = largest_of(quantized().largest(row, rows.width));
    if (largest != largest)
      std::memset(integers, 0, rows.width);
    else
      quantized().round(row, rows.width, 127 / largest, integers);
    rows.scales[place] = largest / 127;
  }

  void start(int m) {
    const int K = h_.keys.width;
    for (int q = m * heads_; q < (m + 1) * heads_; ++q) {
      const size_t head = g_ * heads_ + q % heads_;
      float* const query = queries_ + q * key_width_;
      std::memcpy(query, h_.query + h_.row(b_, m) * h_.query_stride + head * K, sizeof(float) * K);
      std::fill(query + K, query + key_width_, 0.0f);
    }
  }

  // Scores of beams [m, m + beams), which share the positions [t, t + count) of their history.
  void score(int m, int beams, int t, int count) {
    const signed char *keys[TILE], *values[TILE];
    float scales[TILE];
    for (int i = 0; i < count; ++i) {
      const size_t at = position(m, g_, t + i);
      keys[i] = h_.keys.cache + at * h_.keys.width;
      values[i] = h_.values.cache + at * V_;
      scales[i] = h_.keys.scales[at];
    }
    const int first = m * heads_, Q = beams * heads_;
    float* const scores = scores_ + first * stride_ + (t - oldest_);
    history_bytes().dot(queries_ + first * key_width_, Q, keys, scales, count, h_.keys.width, h_.scale, scores, stride_,
                        {values, count, V_});
    for (int q = 0; q < Q; ++q) {
      cap_scores(scores + q * stride_, count, h_.softcap);
      if (h_.distance_bias != nullptr) add_bias(first + q, scores + q * stride_, t, count);
    }
  }

  void add_bias(int q, float* scores, int t, int count) const {
    const float* const own = h_.distance_bias + h_.row(b_, q / heads_) * h_.bias_row_stride;
    const float* const bias = own + (g_ * heads_ + q % heads_) * h_.bias_distances;
    for (int i = 0; i < count; ++i) scores[i] += bias[newest_ - t - i];
  }

  // Turns the scores of a query into weights, with that of the prefix behind them, and starts its sums by the prefix.
  void weigh(int q) {
    float* const scores = scores_ + q * stride_;
    const float lse = h_.prefix_lse == nullptr ? MINUS_INFINITY : h_.prefix_lse[place(q)];
    const bool has_prefix = lse != MINUS_INFINITY;
    const long own = newest_ + 1 - oldest_, count = own + (has_prefix ? 1 : 0);
    if (has_prefix) scores[own] = lse;
    row_sums_[q] = history_bytes().exponentials(scores, count, math().row_max(scores, count));
    float* const sums = sums_ + q * value_width_;
    std::fill(sums, sums + value_width_, 0.0f);
    if (!has_prefix) return;
    const float* const prefix = h_.prefix_output + place(q) * V_;
    for (int v = 0; v < V_; ++v) sums[v] = scores[own] * prefix[v];
  }

  void add(int m, int beams, int t, int count) {
    const signed char *values[TILE], *next_keys[TILE];
    float scales[TILE];
    const bool has_next = g_ + 1 < static_cast<size_t>(h_.G);
    for (int i = 0; i < count; ++i) {
      const size_t at = position(m, g_, t + i);
      values[i] = h_.values.cache + at * V_;
      scales[i] = h_.values.scales[at];
      next_keys[i] = h_.keys.cache + (at + (has_next ? h_.T_max : 0)) * h_.keys.width;
    }
    const int first = m * heads_, Q = beams * heads_;
    for (int q = 0; q < Q; ++q)
      for (int i = 0; i < count; ++i)
        weights_[q * TILE + i] = scores_[(first + q) * stride_ + (t - oldest_) + i] * scales[i];
    history_bytes().add_weighted(weights_, TILE, Q, values, count, V_, sums_ + first * value_width_, value_width_,
                                 {next_keys, has_next ? count : 0, h_.keys.width});
  }

  void write_output(int q) const {
    const float* const sums = sums_ + q * value_width_;
    const float factor = 1 / row_sums_[q];
    float* const output = h_.output + place(q) * V_;
    for (int v = 0; v < V_; ++v) output[v] = sums[v] * factor;
  }

  const ByteHistory& h_;
  const size_t b_, g_;
  const int heads_, Q_, V_, newest_, oldest_;
  const long key_width_, value_width_, stride_;
  float *queries_, *sums_, *scores_, *row_sums_, *weights_;
};

}  // namespace

void attend_history_bytes(const ByteHistory& history, const Parallel& parallel) {
  check_history(history);
  parallel.for_each(static_cast<size_t>(history.B) * history.G, [&](size_t item) {
    static thread_local Scratch scratch;
    Item(history, item / history.G, item % history.G, scratch).run();
  });
}

}  // namespace tightbeam
