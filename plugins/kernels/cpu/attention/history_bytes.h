// The inner loops of attention over histories of 8-bit rows, compiled once for each instruction set. `history_bytes()`
// returns the best version for this machine. All versions give the same bits: the order of every sum is fixed, and
// floats are never contracted.
#pragma once

namespace tightbeam {

constexpr int SUMMED_TOGETHER = 16;  // numbers of a sum that are added side by side, before these sums are added

// Rows of integers. They are prefetched while others are worked on.
struct UpcomingBytes {
  const signed char* const* rows;
  int count;
  int width;  // of a row
};

struct HistoryBytes {
  const char* name;

  // scores[q * stride + t] = queries[q] . keys[t] x scales[t] x factor; `queries`: [Q, K rounded up to 16], with zeros
  // behind a query; `keys`: `count` pointers to K integers.
  void (*dot)(const float* queries, int Q, const signed char* const* keys, const float* scales, int count, int K,
              float factor, float* scores, long stride, UpcomingBytes next);

  // sums[q * sums_stride + v] += sum over t of weights[q * stride + t] x values[t][v], in the order of t. `values`:
  // pointers to V integers; `sums` has room for V rounded up to 16.
  void (*add_weighted)(const float* weights, long stride, int Q, const signed char* const* values, int count, int V,
                       float* sums, long sums_stride, UpcomingBytes next);

  // numbers[i] = exp(numbers[i] - shift); returns their sum.
  float (*exponentials)(float* numbers, long count, float shift);
};

const HistoryBytes& history_bytes();

}  // namespace tightbeam
