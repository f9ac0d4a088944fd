// BeamLatentAttention in CUDA: the H queries of a row over its own history, of rows that are keys and values at once.
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_tensor_core.cuh"
#include "ops/beam_latent_attention/arguments.h"
#ifndef __CUDACC_RTC__
#include "ops/beam_latent_attention/launch_plan.h"
#endif

namespace tightbeam::device {

// The work of a block, as the `Problem` of attention_rows.cuh and attention_tensor_core.cuh: 16 heads of one row over
// its history.
template <class Float>
struct BeamLatentProblem {
  const BeamLatentAttentionArguments<Float>& a;
  const Span& span;
  int K, D, sample, beam, first_head, queries, begin, end;
  using Slot = int;
  static constexpr Slot NO_SLOT = -1;
  static constexpr bool HAS_SLOTS = true;

  // The grid's x counts blocks of a row's heads, y the beams of a sample, z the samples.
  __device__ BeamLatentProblem(const BeamLatentAttentionArguments<Float>& a, const Span& span, int block)
      : a(a),
        span(span),
        K(a.K),
        D(a.G * a.K),
        sample(blockIdx.z),
        beam(blockIdx.y),
        first_head(block * 16),
        queries(min(16, a.H - first_head)),
        begin(span.begin),
        end(span.newest + 1) {}

  __device__ long long row() const { return static_cast<long long>(sample) * a.M + beam; }
  __device__ int first_group(int j) const { return (first_head + j) / (a.H / a.G); }

  // A number of query j, rotated; 0 outside the query's head.
  __device__ float query(int j, int column) const {
    const int k = column - first_group(j) * K;
    if (k < 0 || k >= K) return 0.0f;
    const Float* head = a.query + (row() * a.H + first_head + j) * K;
    return rotated(a, span.first + span.newest, k, [&](int c) { return to_float(head[c]); });
  }
  __device__ void copy_query(Float* to, int j, int column) const {
    const int k = j < queries ? column - first_group(j) * K : -1;
    const bool own = k >= 0 && k < K;
    if (own && k < a.rotary) {
      Pack<Float> pack;
      for (int i = 0; i < Pack<Float>::size; ++i) pack.values[i] = from_float<Float>(query(j, column + i));
      store_16(to, pack);
    } else {
      copy_async_16_or_zeros(shared_address(to), a.query + (own ? (row() * a.H + first_head + j) * K + k : 0), own);
    }
  }

  // Addresses of a column of the sample's first row: in the cache at position 0, and in the new row.
  struct Columns {
    const Float *cache, *row;
  };
  __device__ Columns column_start(int column) const {
    const long long first = static_cast<long long>(sample) * a.M * D;
    return {a.cache + (first + column - column % K) * a.T_max + column % K, a.row + first + column};
  }
  // The newest position is read from the inputs, since another block may be writing the cache's row at this moment.
  __device__ const Float* pack(const Columns& start, int n, int slot) const {
    const long long first = static_cast<long long>(slot) * D;
    return n == span.newest ? start.row + first : start.cache + first * a.T_max + static_cast<long long>(n) * K;
  }
  __device__ int slot(int n) const { return a.ancestry[row() * a.T + n]; }
  __device__ float number(int n, int column) const { return to_float(*pack(column_start(column), n, slot(n))); }
  __device__ float key(int n, int column) const {
    const int first = column - column % K;
    return rotated(a, span.first + n, column % K, [&](int c) { return number(n, first + c); });
  }

  __device__ int table_row(int n) const { return span.first + min(n, span.newest); }

  __device__ bool counts(int n) const { return n < end; }
  template <bool PLAIN>
  __device__ float score(int j, int n, float dot) const {
    if (a.scale_cache) {
      const long long source = history_row(a, sample, beam, n);
      const int g = first_group(j);
      dot *= n == span.newest ? a.row_scales[source * a.G + g] : a.scale_cache[(source * a.G + g) * a.T_max + n];
    }
    return history_score<PLAIN>(a, span, history_bias(a, row()), first_head + j, n, dot);
  }

  __device__ void put(int j, int column, const PartialSoftmax& softmax, float sum) const {
    const long long place = row() * a.H + first_head + j;
    const float value = combine_parts(
        a.prefix_lse ? 2 : 1, [&](int part) { return part == 0 ? softmax : PartialSoftmax{a.prefix_lse[place], 1.0f}; },
        [&](int part) { return part == 0 ? sum : to_float(a.prefix_output[place * D + column]); }, nullptr);
    a.output[place * D + column] = from_float<Float>(value);
  }
  __device__ void put_pack(int j, int column, const PartialSoftmax& softmax, const float* sums) const {
    const long long place = row() * a.H + first_head + j;
    const float2 share = shares_beside_prefix(softmax, a.prefix_lse ? a.prefix_lse + place : nullptr);
    Pack<Float> pack, prefix;
    if (share.y != 0.0f) prefix = load_16(a.prefix_output + place * D + column);
#pragma unroll
    for (int i = 0; i < Pack<Float>::size; ++i) {
      const float from_prefix = share.y == 0.0f ? 0.0f : share.y * to_float(prefix.values[i]);
      pack.values[i] = from_float<Float>(share.x * sums[i] + from_prefix);
    }
    store_16(a.output + place * D + column, pack);
  }
};

// Writes the new row into the cache, once. If the sample is invalid, it writes NaN to the output and returns false.
template <class Float>
__device__ __forceinline__ bool begin_beam_latent(const BeamLatentProblem<Float>& problem) {
  const auto& a = problem.a;
  const int D = problem.D;
  if (!problem.span.valid) {
    Float* output = a.output + (problem.row() * a.H + problem.first_head) * D;
    for (int i = threadIdx.x; i < problem.queries * D; i += blockDim.x) output[i] = from_float<Float>(not_a_number());
    return false;
  }
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < D; i += blockDim.x)
      a.cache[((problem.row() * a.G + i / a.K) * a.T_max + problem.span.newest) * a.K + i % a.K] =
          a.row[problem.row() * D + i];
  if (a.scale_cache && blockIdx.x == 0)
    for (int g = threadIdx.x; g < a.G; g += blockDim.x)
      a.scale_cache[(problem.row() * a.G + g) * a.T_max + problem.span.newest] = a.row_scales[problem.row() * a.G + g];
  return true;
}

template <class Float>
__global__ void __launch_bounds__(SIMT_THREADS, 1)
    beam_latent_attention_simt_kernel(BeamLatentAttentionArguments<Float> a) {
  const int blocks = (a.H + 15) / 16;
  const Span span = history_span(a, blockIdx.z);
  const BeamLatentProblem<Float> problem(a, span, blockIdx.x % blocks);
  if (begin_beam_latent(problem)) attend_simt(problem, blockIdx.x / blocks * SIMT_COLUMNS);
}

template <class Half, int STEPS, int COLUMNS, bool ROTATED>
__global__ void __launch_bounds__(512, 1)
    beam_latent_attention_tensor_core_kernel(BeamLatentAttentionArguments<Half> a, TensorCoreShape shape) {
  const Span span = history_span(a, blockIdx.z);
  const BeamLatentProblem<Half> problem(a, span, blockIdx.x);
  if (!begin_beam_latent(problem)) return;
  TensorCoreAttention<Half, 1, STEPS, COLUMNS, ROTATED, BeamLatentProblem<Half>> attention(problem, shape);
  attention.run();
  attention.put();
}

}  // namespace tightbeam::device
