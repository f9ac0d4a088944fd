// The inner loops of the CPU kernels, compiled once for each instruction set; `math()` is the best one of this machine.
#pragma once

#include <cstddef>

namespace tightbeam {

// Rows that will be needed next: they are fetched from memory while others are worked on.
struct Upcoming {
  const float* const* rows;
  int count;
  int width;  // numbers of a row
};

struct Math {
  const char* name;

  // scores[q * stride + t] = queries[q] . keys[t]; queries [Q, K], keys: `count` pointers to K numbers.
  void (*dot)(const float* queries, int Q, const float* const* keys, int count, int K, float* scores, int stride,
              Upcoming next);

  // sums[q * sums_stride + v] += sum over t of weights[q * stride + t] x values[t][v]; values: pointers to V numbers.
  void (*add_weighted)(const float* weights, int stride, int Q, const float* const* values, int count, int V,
                       float* sums, long sums_stride, Upcoming next);

  // The greatest of `count` numbers, -inf of none; NaN if one is.
  float (*row_max)(const float* numbers, size_t count);

  // numbers[i] = exp(numbers[i] - shift); returns their sum.
  float (*exponentials)(float* numbers, size_t count, float shift);

  // The sum of exp(numbers[i] - shift).
  double (*sum_of_exponentials)(const float* numbers, size_t count, float shift);

  void (*scale)(float* numbers, size_t count, float factor);

  // normalized = (row - mean, if `centred`) / root of the mean square of that plus epsilon, x weight + bias.
  void (*normalize)(const float* row, long count, const float* weight, const float* bias, float epsilon, bool centred,
                    float* normalized);

  // The first index from `from` on whose number is above the threshold; `count` if there is none.
  size_t (*next_above)(const float* numbers, size_t from, size_t count, float threshold);
};

const Math& math();

// Scores s become softcap x tanh(s / softcap); they stay as they are where that is 0. The same bits on every machine.
void cap_scores(float* scores, size_t count, float softcap);

}  // namespace tightbeam
