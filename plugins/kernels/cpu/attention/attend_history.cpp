#include "kernels/cpu/attention/attend_history.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/rotation.h"
#include "kernels/cpu/check_values.h"

namespace tightbeam {
namespace {

constexpr int TILE = Attention::TILE;

// The attention of the queries of sample b that share key head g: all M beams, in order.
class Item {
 public:
  Item(const History& h, size_t b, size_t g)
      : h_(h),
        b_(b),
        g_(g),
        heads_(h.H / h.G),
        V_(h.values.cache != nullptr ? h.values.width : h.G * h.keys.width),
        newest_(h.lengths[b] - 1),
        attention_(h.M * heads_, h.keys.width, V_, h.scale),
        rotation_{h.cosines, h.sines, h.rotary},
        first_position_(h.first_positions == nullptr ? 0 : h.first_positions[b]),
        rotated_(rotation_ ? static_cast<size_t>(TILE) * h.keys.width : 0) {}

  void run() {
    const int oldest = h_.oldest(b_), diverging = h_.end_of_shared(b_, oldest);
    fetch_first_head(oldest, diverging);
    write(h_.keys);
    if (h_.values.cache != nullptr) write(h_.values);
    if (h_.scale_cache != nullptr)
      for (int m = 0; m < h_.M; ++m) *cached_scale(m, newest_) = h_.row_scales[row(m) * h_.G + g_];
    for (int m = 0; m < h_.M; ++m) start(m);
    for (int t = oldest; t < diverging; t += TILE) attend(0, h_.M, t, std::min(TILE, diverging - t));
    for (int m = 0; m < h_.M; ++m)
      for (int t = diverging; t <= newest_; t += TILE) attend(m, 1, t, std::min(TILE, newest_ + 1 - t));
    for (int q = 0; q < h_.M * heads_; ++q) attention_.write_output(q, h_.output + place(q) * V_);
  }

 private:
  size_t row(int m) const { return h_.row(b_, m); }
  size_t place(int q) const { return row(q / heads_) * h_.H + g_ * heads_ + q % heads_; }
  const int* slots(int m) const { return h_.slots(b_, m); }

  float* cached(const HistoryRows& rows, int slot, size_t head, int t) const {
    return rows.cache + ((row(slot) * h_.G + head) * h_.T_max + t) * rows.width;
  }

  float* cached_scale(int slot, int t) const { return h_.scale_cache + (row(slot) * h_.G + g_) * h_.T_max + t; }

  static void fetch(const float* row, int width) {
    for (int k = 0; k < width; k += 64 / sizeof(float)) __builtin_prefetch(row + k, 0, 2);
  }

  // A history's rows are scattered, so the hardware does not prefetch them. The first head of a sample prefetches its
  // own rows; the rows of every other head are prefetched during the head before it.
  void fetch_first_head(int oldest, int diverging) const {
    if (g_ != 0) return;
    for (int m = 0; m < h_.M; ++m)
      for (int t = m == 0 ? oldest : diverging; t < newest_; ++t) {
        fetch(read(h_.keys, m, 0, t), h_.keys.width);
        if (h_.values.cache != nullptr) fetch(read(h_.values, m, 0, t), h_.values.width);
      }
  }

  void write(const HistoryRows& rows) const {
    for (int m = 0; m < h_.M; ++m)
      std::memcpy(cached(rows, m, g_, newest_), rows.row + row(m) * rows.row_stride + g_ * rows.width,
                  sizeof(float) * rows.width);
  }

  // Position t of beam m's history. The newest one is read from the inputs, since another item may not have written it.
  const float* read(const HistoryRows& rows, int m, size_t head, int t) const {
    if (t == newest_) return rows.row + row(m) * rows.row_stride + head * rows.width;
    return cached(rows, slots(m)[t], head, t);
  }

  void start(int m) {
    for (int q = m * heads_; q < (m + 1) * heads_; ++q) {
      const size_t head = g_ * heads_ + q % heads_;
      attention_.set_query(q, h_.query + row(m) * h_.query_stride + head * h_.keys.width);
      if (rotation_) rotate(attention_.query(q), attention_.query(q), newest_);
      if (h_.prefix_lse != nullptr) attention_.set_prefix(q, h_.prefix_output + place(q) * V_, h_.prefix_lse[place(q)]);
    }
  }

  // Attention of beams [m, m + beams), which share the positions [t, t + count) of their history.
  void attend(int m, int beams, int t, int count) {
    const int first = m * heads_, Q = beams * heads_;
    const float *keys[TILE] = {}, *values[TILE], *next_keys[TILE], *next_values[TILE];
    const bool has_values = h_.values.cache != nullptr;
    const int next = g_ + 1 < static_cast<size_t>(h_.G) ? count : 0;
    for (int i = 0; i < count; ++i) {
      keys[i] = read(h_.keys, m, g_, t + i);
      if (has_values) values[i] = read(h_.values, m, g_, t + i);
    }
    for (int i = 0; i < next; ++i) {
      next_keys[i] = read(h_.keys, m, g_ + 1, t + i);
      if (has_values) next_values[i] = read(h_.values, m, g_ + 1, t + i);
    }
    if (rotation_) rotate_keys(keys, t, count);
    attention_.dot(first, Q, keys, count, {next_keys, next, h_.keys.width});
    if (h_.scale_cache != nullptr) scale_scores(m, first, Q, t, count);
    attention_.cap(first, Q, count, h_.softcap);
    if (h_.distance_bias != nullptr) add_bias(first, Q, t, count);
    attention_.weigh(first, Q, count);
    if (has_values) return attention_.add(first, Q, values, count, V_, 0, {next_values, next, h_.values.width});
    for (int head = 0; head < h_.G; ++head) {
      for (int i = 0; i < count; ++i) values[i] = read(h_.keys, m, head, t + i);
      attention_.add(first, Q, values, count, h_.keys.width, head * h_.keys.width, {});
    }
  }

  void rotate_keys(const float** keys, int t, int count) {
    for (int i = 0; i < count; ++i) {
      float* rotated = &rotated_[static_cast<size_t>(i) * h_.keys.width];
      rotate(keys[i], rotated, t + i);
      keys[i] = rotated;
    }
  }

  // Multiplies the scores by the keys' factors. This item itself has written the newest position's factor.
  void scale_scores(int m, int first, int Q, int t, int count) {
    for (int i = 0; i < count; ++i) {
      const float factor = *cached_scale(t + i == newest_ ? m : slots(m)[t + i], t + i);
      for (int q = first; q < first + Q; ++q) attention_.scores(q)[i] *= factor;
    }
  }

  void add_bias(int first, int Q, int t, int count) {
    for (int q = first; q < first + Q; ++q) {
      const float* own = h_.distance_bias + row(q / heads_) * h_.bias_row_stride;
      const float* bias = own + (g_ * heads_ + q % heads_) * h_.bias_distances;
      float* scores = attention_.scores(q);
      for (int i = 0; i < count; ++i) scores[i] += bias[newest_ - t - i];
    }
  }

  void rotate(const float* from, float* to, int t) const {
    rotation_.rotate(from, to, h_.keys.width, static_cast<size_t>(first_position_ + t));
  }

  const History& h_;
  const size_t b_, g_;
  const int heads_, V_, newest_;
  Attention attention_;
  const Rotation rotation_;
  const int first_position_;
  std::vector<float> rotated_;
};

}  // namespace

void check_history(const HistoryBase& h) {
  check_lengths(h.op, h.lengths, h.B, h.T, "the positions of ancestry");
  for (int b = 0; b < h.B; ++b) {
    const int newest = h.lengths[b] - 1;
    const std::string at = "[" + std::to_string(b) + "]";
    for (int m = 0; m < h.M; ++m) {
      const int* slots = h.ancestry + (static_cast<size_t>(b) * h.M + m) * h.T;
      for (int t = 0; t < newest; ++t)
        if (slots[t] < 0 || slots[t] >= h.M)
          fail(h.op, "ancestry[" + std::to_string(b) + ", " + std::to_string(m) + ", " + std::to_string(t) + "] is " +
                         std::to_string(slots[t]) + ", expected a beam in 0.." + std::to_string(h.M - 1));
      if (slots[newest] != m)
        fail(h.op, "ancestry[" + std::to_string(b) + ", " + std::to_string(m) + ", " + std::to_string(newest) +
                       "], the newest position, is " + std::to_string(slots[newest]) + ", expected the beam's own " +
                       std::to_string(m));
    }
    if (h.cosines != nullptr) {
      const int first = h.first_positions == nullptr ? 0 : h.first_positions[b];
      if (first < 0 || first > h.rotary_positions - h.lengths[b])
        fail(h.op, "first_positions" + at + " is " + std::to_string(first) + " and lengths" + at + " " +
                       std::to_string(h.lengths[b]) + ", expected a sum of at most " +
                       std::to_string(h.rotary_positions) + ", the rows of cosines");
    }
    const int farthest = h.window == 0 ? newest : std::min(newest, h.window - 1);
    if (h.distance_bias != nullptr && farthest >= h.bias_distances)
      fail(h.op, "lengths" + at + " is " + std::to_string(h.lengths[b]) + ", " +
                     (h.bias_row_stride == 0 ? "distance_bias" : "row_bias") + " has only " +
                     std::to_string(h.bias_distances) + " distances, expected " + std::to_string(farthest + 1));
  }
}

void attend_history(const History& history, const Parallel& parallel) {
  check_history(history);
  parallel.for_each(static_cast<size_t>(history.B) * history.G,
                    [&](size_t item) { Item(history, item / history.G, item % history.G).run(); });
}

}  // namespace tightbeam
