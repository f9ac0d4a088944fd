// SIMT attention over rows that are keys and values at once, for latent_attention and beam_latent_attention.
//
// A `Problem` has the queries and rows of a block. Its queries are as wide as a row, D = G K numbers, and zero outside
// their own head.
//   queries, begin, end, D               of this block
//   first_group(j), K                    query j has K numbers, from column first_group(j) K on
//   query(j, column), number(n, column)  a number of a query and of a row
//   key(n, column)                       a row's number for the scores, rotated if keys are
//   counts(n), score<false>(j, n, dot)   true if a position counts, and its score
//   put(j, column, softmax, sum)         takes a result
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_plan.h"

namespace tightbeam::device {

// For float32, any width and any alignment. A block computes SIMT_COLUMNS columns of 16 queries. It computes the scores
// from chunks of 64 numbers in shared memory. Then it reads the rows again, from L1 or L2, for the sums in registers.
template <class Problem>
__device__ __forceinline__ void attend_simt(const Problem& problem, int first_column) {
  constexpr int COLUMNS = SIMT_COLUMNS / SIMT_THREADS;
  float* queries = shared_memory<float>();                   // [SIMT_QUERIES, SIMT_STRIDE]
  float* keys = queries + SIMT_QUERIES * SIMT_STRIDE;        // [SIMT_POSITIONS, SIMT_STRIDE]
  float* weights = keys + SIMT_POSITIONS * SIMT_STRIDE;      // [SIMT_POSITIONS, SIMT_QUERIES]
  float* shrinks = weights + SIMT_POSITIONS * SIMT_QUERIES;  // [SIMT_QUERIES]
  const int thread = threadIdx.x, q = thread / 16;  // this thread's query; its positions are thread % 16 and that + 16
  const int group = q < problem.queries ? problem.first_group(q) : -1;
  const int first_group = problem.first_group(0), last_group = problem.first_group(problem.queries - 1);
  PartialSoftmax softmax = {-infinity(), 0.0f};
  float sums[COLUMNS][SIMT_QUERIES] = {};

  for (int begin = problem.begin; begin < problem.end; begin += SIMT_POSITIONS) {
    const int positions = min(SIMT_POSITIONS, problem.end - begin);
    float dots[2] = {};
    for (int g = first_group; g <= last_group; ++g)
      for (int chunk = 0; chunk < problem.K; chunk += SIMT_CHUNK) {
        __syncthreads();
        for (int i = thread; i < (SIMT_QUERIES + SIMT_POSITIONS) * SIMT_CHUNK; i += SIMT_THREADS) {
          const int row = i / SIMT_CHUNK, k = chunk + i % SIMT_CHUNK, n = row - SIMT_QUERIES;
          float number = 0.0f;
          if (k < problem.K && n >= 0 && n < positions) number = problem.key(begin + n, g * problem.K + k);
          if (k < problem.K && n < 0 && row < problem.queries) number = problem.query(row, g * problem.K + k);
          queries[row * SIMT_STRIDE + i % SIMT_CHUNK] = number;
        }
        __syncthreads();
        if (group == g)
          for (int k = 0; k < SIMT_CHUNK; k += 4) {
            const Pack<float> query = load_16(queries + q * SIMT_STRIDE + k);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const Pack<float> key = load_16(keys + (thread % 16 + 16 * half) * SIMT_STRIDE + k);
#pragma unroll
              for (int i = 0; i < 4; ++i) dots[half] += query.values[i] * key.values[i];
            }
          }
      }

    float scores[2], row_max = softmax.row_max;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = thread % 16 + 16 * half;
      scores[half] = -infinity();
      if (q < problem.queries && n < positions && problem.counts(begin + n))
        scores[half] = problem.template score<false>(q, begin + n, dots[half]);
      row_max = fmaxf(row_max, scores[half]);
    }
    for (int distance = 8; distance > 0; distance /= 2)
      row_max = fmaxf(row_max, __shfl_xor_sync(WHOLE_WARP, row_max, distance));
    const float shrink = weight_below(softmax.row_max, row_max);
    softmax = {row_max, softmax.row_sum * shrink};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = weight_below(scores[half], row_max);
      weights[(thread % 16 + 16 * half) * SIMT_QUERIES + q] = weight;
      softmax.row_sum += weight;
    }
    if (thread % 16 == 0) shrinks[q] = shrink;
    __syncthreads();

#pragma unroll
    for (int i = 0; i < SIMT_QUERIES; ++i)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sums[c][i] *= shrinks[i];
    for (int n = 0; n < positions; ++n) {
      float row[COLUMNS];
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const int column = first_column + c * SIMT_THREADS + thread;
        row[c] = column < problem.D ? problem.number(begin + n, column) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < SIMT_QUERIES; i += 4) {
        const Pack<float> four = load_16(weights + n * SIMT_QUERIES + i);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) sums[c][i + j] += four.values[j] * row[c];
      }
    }
  }

  __syncthreads();
  for (int distance = 8; distance > 0; distance /= 2)
    softmax.row_sum += __shfl_xor_sync(WHOLE_WARP, softmax.row_sum, distance);
  if (thread % 16 == 0) weights[q] = softmax.row_max, weights[SIMT_QUERIES + q] = softmax.row_sum;
  __syncthreads();
  // Each thread's numbers go through shared memory, so that the code does not have a copy of `put` for each of them.
  constexpr int STAGED = 8;
  static_assert(STAGED * SIMT_THREADS <= (SIMT_QUERIES + SIMT_POSITIONS) * SIMT_STRIDE,
                "staged numbers need the memory of the chunks");
  float* staged = queries + thread;  // [STAGED, SIMT_THREADS]
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
    for (int first = 0; first < SIMT_QUERIES; first += STAGED) {
#pragma unroll
      for (int i = 0; i < STAGED; ++i) staged[i * SIMT_THREADS] = sums[c][first + i];
      const int column = first_column + c * SIMT_THREADS + thread;
#pragma unroll 1
      for (int i = 0; i < STAGED; ++i) {
        const int query = first + i;
        if (query < problem.queries && column < problem.D)
          problem.put(query, column, PartialSoftmax{weights[query], weights[SIMT_QUERIES + query]},
                      staged[i * SIMT_THREADS]);
      }
    }
}

}  // namespace tightbeam::device
