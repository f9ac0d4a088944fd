// Attention of a few queries over tiles of positions, with an online softmax.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/cpu/math.h"

namespace tightbeam {

class Attention {
 public:
  static constexpr int TILE = 32;  // positions that are processed together; their rows fit the first cache

  // For Q queries of width K and values of width V. `scale` is the factor of the scores.
  Attention(int Q, int K, int V, float scale);

  void set_query(int q, const float* query);
  float* query(int q) { return &queries_[static_cast<size_t>(q) * K_]; }

  // Starts query q from the attention state of other positions: their output, and the log-sum-exp of their scores.
  void set_prefix(int q, const float* output, float lse);

  // Computes the scores of queries [first, first + Q) at `count` <= TILE positions. Meanwhile the `next` rows are
  // prefetched. The scores of query q begin at scores(q).
  void dot(int first, int Q, const float* const* keys, int count, Upcoming next);
  float* scores(int q) { return &scores_[static_cast<size_t>(q) * TILE]; }

  // Caps the scores: s becomes softcap x tanh(s / softcap), unless softcap is 0.
  void cap(int first, int Q, int count, float softcap);

  // Turns the scores into weights, and scales the sums of earlier tiles to the new row max.
  void weigh(int first, int Q, int count);

  // Adds weights x values to columns [column, column + width) of the outputs.
  void add(int first, int Q, const float* const* values, int count, int width, int column, Upcoming next);

  // Writes query q's output; zeros if it has seen no position.
  void write_output(int q, float* output) const;
  float lse(int q) const;

 private:
  const Math& math_;
  int K_, V_;
  float scale_;
  std::unique_ptr<float[]> numbers_;  // all of the following, since there are many small attentions
  float *queries_, *scores_, *sums_, *row_max_, *row_sums_;
};

}  // namespace tightbeam
