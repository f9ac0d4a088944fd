#include "kernels/cpu/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tightbeam {

namespace {
constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
}

Attention::Attention(int Q, int K, int V, float scale)
    : math_(math()),
      K_(K),
      V_(V),
      scale_(scale),
      numbers_(new float[static_cast<size_t>(Q) * (static_cast<size_t>(K) + TILE + V + 2)]),
      queries_(numbers_.get()),
      scores_(queries_ + static_cast<size_t>(Q) * K),
      sums_(scores_ + static_cast<size_t>(Q) * TILE),
      row_max_(sums_ + static_cast<size_t>(Q) * V),
      row_sums_(row_max_ + Q) {
  std::fill_n(sums_, static_cast<size_t>(Q) * V, 0.0f);
  std::fill_n(row_max_, Q, MINUS_INFINITY);
  std::fill_n(row_sums_, Q, 0.0f);
}

void Attention::set_query(int q, const float* query) { std::memcpy(this->query(q), query, sizeof(float) * K_); }

void Attention::set_prefix(int q, const float* output, float lse) {
  if (lse == MINUS_INFINITY) return;
  row_max_[q] = lse;
  row_sums_[q] = 1;
  std::memcpy(&sums_[static_cast<size_t>(q) * V_], output, sizeof(float) * V_);
}

void Attention::dot(int first, int Q, const float* const* keys, int count, Upcoming next) {
  math_.dot(query(first), Q, keys, count, K_, scores(first), TILE, next);
  for (int q = first; q < first + Q; ++q) math_.scale(scores(q), count, scale_);
}

void Attention::cap(int first, int Q, int count, float softcap) {
  for (int q = first; q < first + Q; ++q) cap_scores(scores(q), count, softcap);
}

void Attention::weigh(int first, int Q, int count) {
  for (int q = first; q < first + Q; ++q) {
    float* row = scores(q);
    const float above = math_.row_max(row, count);
    if (above > row_max_[q] || above != above) {  // a NaN must reach the output, as in any attention
      const float shrink = std::exp(row_max_[q] - above);
      row_sums_[q] *= shrink;
      math_.scale(&sums_[static_cast<size_t>(q) * V_], V_, shrink);
      row_max_[q] = above;
    }
    row_sums_[q] += math_.exponentials(row, count, row_max_[q]);
  }
}

void Attention::add(int first, int Q, const float* const* values, int count, int width, int column, Upcoming next) {
  math_.add_weighted(scores(first), TILE, Q, values, count, width, &sums_[static_cast<size_t>(first) * V_ + column], V_,
                     next);
}

void Attention::write_output(int q, float* output) const {
  const float* sums = &sums_[static_cast<size_t>(q) * V_];
  const float factor = row_sums_[q] == 0 ? 0 : 1 / row_sums_[q];
  for (int v = 0; v < V_; ++v) output[v] = sums[v] * factor;
}

float Attention::lse(int q) const { return row_max_[q] + std::log(row_sums_[q]); }

}  // namespace tightbeam
