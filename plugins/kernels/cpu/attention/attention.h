// Attention of a few queries over positions that come tile by tile, with an online softmax.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cpu/math.h"

namespace tightbeam {

class Attention {
 public:
  static constexpr int TILE = 32;  // positions that are processed together; their rows stay in the nearest cache

  // Q queries of width K; values of width V; `scale`: factor on the scores.
  Attention(int Q, int K, int V, float scale);

  void set_query(int q, const float* query);
  float* query(int q) { return &queries_[static_cast<size_t>(q) * K_]; }

  // Starts from the attention state of other positions: their output, and the log of the sum of their exponentials.
  void set_prefix(int q, const float* output, float lse);

  // Scores of queries [first, first + Q) at `count` <= TILE positions; row q begins at scores(q). Meanwhile the rows
  // that will be needed `next` are fetched.
  void dot(int first, int Q, const float* const* keys, int count, Upcoming next);
  float* scores(int q) { return &scores_[static_cast<size_t>(q) * TILE]; }

  // Scores s become softcap x tanh(s / softcap), where that is not 0.
  void cap(int first, int Q, int count, float softcap);

  // Turn the scores into weights: what was summed up before is scaled to the new maximum.
  void weigh(int first, int Q, int count);

  // Add weights x values to columns [column, column + width) of the outputs.
  void add(int first, int Q, const float* const* values, int count, int width, int column, Upcoming next);

  // Zeros where no position was seen.
  void write_output(int q, float* output) const;
  float lse(int q) const;

 private:
  const Math& math_;
  int K_, V_;
  float scale_;
  std::vector<float> queries_, scores_, sums_, highest_, totals_;
};

}  // namespace tightbeam
