// The inner loops of the CPU kernels, compiled once for each instruction set. `math()` returns the best version for
// this machine.
#pragma once

#include <cstddef>

namespace tightbeam {

// Rows that are needed next. They are prefetched while others are worked on.
struct Upcoming {
  const float* const* rows;
  int count;
  int width;  // of a row
};

struct Math {
  const char* name;

  // scores[q * stride + t] = queries[q] . keys[t]; queries [Q, K], keys: `count` pointers to K numbers.
  void (*dot)(const float* queries, int Q, const float* const* keys, int count, int K, float* scores, int stride,
              Upcoming next);

  // sums[q * sums_stride + v] += sum over t of weights[q * stride + t] x values[t][v]; values: pointers to V numbers.
  void (*add_weighted)(const float* weights, int stride, int Q, const float* const* values, int count, int V,
                       float* sums, long sums_stride, Upcoming next);

  // The largest number; -inf if `count` is 0, NaN if a number is NaN.
  float (*row_max)(const float* numbers, size_t count);

  // numbers[i] = exp(numbers[i] - shift); returns their sum.
  float (*exponentials)(float* numbers, size_t count, float shift);

  // The sum of exp(numbers[i] - shift), of a few hundred numbers at most.
  float (*sum_of_exponentials)(const float* numbers, size_t count, float shift);

  void (*scale)(float* numbers, size_t count, float factor);

  // normalized = x / sqrt(mean of x^2 + epsilon) x weight + bias, with x = row - mean if `centred`, else x = row.
  void (*normalize)(const float* row, long count, const float* weight, const float* bias, float epsilon, bool centred,
                    float* normalized);

  // The first index from `from` on of a number above the threshold; `count` if every number is below or equal.
  size_t (*next_above)(const float* numbers, size_t from, size_t count, float threshold);
};

const Math& math();

// Caps scores: s becomes softcap x tanh(s / softcap), unless softcap is 0. The bits are the same on every machine.
void cap_scores(float* scores, size_t count, float softcap);

}  // namespace tightbeam
