// BeamLatentAttention in CUDA: the H queries of a row over its own history, whose rows are keys and values at once.
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "ops/beam_latent_attention/arguments.h"
#ifndef __CUDACC_RTC__
#include "ops/beam_latent_attention/launch_plan.h"
#endif

namespace tightbeam::device {

// A block's part, the `Problem` of attention_rows.cuh: 16 heads of one row over its history.
template <class Float>
struct BeamLatentProblem {
  const BeamLatentAttentionArguments<Float>& a;
  const Span& span;
  int K, D, sample, beam, first_head, queries, begin, end;
  bool aligned;

  __device__ BeamLatentProblem(const BeamLatentAttentionArguments<Float>& a, const Span& span, bool aligned)
      : a(a),
        span(span),
        K(a.K),
        D(a.G * a.K),
        sample(blockIdx.x / a.M),
        beam(blockIdx.x % a.M),
        first_head(blockIdx.y * 16),
        queries(min(16, a.H - first_head)),
        begin(span.begin),
        end(span.newest + 1),
        aligned(aligned) {}

  __device__ long long row() const { return static_cast<long long>(sample) * a.M + beam; }
  __device__ int first_group(int j) const { return (first_head + j) / (a.H / a.G); }

  __device__ float query(int j, int column) const {
    const int k = column - first_group(j) * K;
    if (k < 0 || k >= K) return 0.0f;
    const Float* head = a.query + (row() * a.H + first_head + j) * K;
    return rotated(a, span.first + span.newest, k, [&](int c) { return to_float(head[c]); });
  }
  // The newest position comes from the inputs: the cache's row may be written by another block at this moment.
  __device__ const Float* pack(int n, int column) const {
    const long long source = history_row(a, sample, beam, n);
    if (n == span.newest) return a.row + source * D + column;
    return a.cache + ((source * a.G + column / K) * a.T_max + n) * K + column % K;
  }
  __device__ float number(int n, int column) const { return to_float(*pack(n, column)); }
  __device__ float key(int n, int column) const {
    const int first = column - column % K;
    return rotated(a, span.first + n, column % K, [&](int c) { return number(n, first + c); });
  }

  __device__ void load_keys(unsigned (&b)[2][2], const Float* corner, int stride, int n, int column) const {
    load_key_fragments(b, corner, stride);
    if constexpr (sizeof(Float) == 2)
      if (a.rotary > 0)
        turn_key_fragments(b, corner, stride, a, column, [&](int i) { return span.first + min(n + i, span.newest); });
  }
  __device__ bool counts(int n) const { return n < end; }
  __device__ float score(int j, int n, float dot) const {
    if (a.scale_cache) {
      const long long source = history_row(a, sample, beam, n);
      const int g = first_group(j);
      dot *= n == span.newest ? a.row_scales[source * a.G + g] : a.scale_cache[(source * a.G + g) * a.T_max + n];
    }
    return history_score(a, span, history_bias(a, row()), first_head + j, n, dot);
  }

  __device__ void put(int j, int column, const PartialSoftmax& softmax, float sum) const {
    const long long place = row() * a.H + first_head + j;
    const float value = join_parts(
        a.prefix_lse ? 2 : 1, [&](int part) { return part == 0 ? softmax : PartialSoftmax{a.prefix_lse[place], 1.0f}; },
        [&](int part) { return part == 0 ? sum : to_float(a.prefix_output[place * D + column]); }, nullptr);
    a.output[place * D + column] = from_float<Float>(value);
  }
};

// Writes the new row of the cache, once; false, and NaN in the output, where the sample is not valid.
template <class Float>
__device__ __forceinline__ bool begin_beam_latent(const BeamLatentProblem<Float>& problem) {
  const auto& a = problem.a;
  const int D = problem.D;
  if (!problem.span.valid) {
    Float* output = a.output + (problem.row() * a.H + problem.first_head) * D;
    for (int i = threadIdx.x; i < problem.queries * D; i += blockDim.x) output[i] = from_float<Float>(not_a_number());
    return false;
  }
  if (blockIdx.y == 0 && blockIdx.z == 0)
    for (int i = threadIdx.x; i < D; i += blockDim.x)
      a.cache[((problem.row() * a.G + i / a.K) * a.T_max + problem.span.newest) * a.K + i % a.K] =
          a.row[problem.row() * D + i];
  if (a.scale_cache && blockIdx.y == 0 && blockIdx.z == 0)
    for (int g = threadIdx.x; g < a.G; g += blockDim.x)
      a.scale_cache[(problem.row() * a.G + g) * a.T_max + problem.span.newest] = a.row_scales[problem.row() * a.G + g];
  return true;
}

template <class Float>
__global__ void __launch_bounds__(SIMT_THREADS, 1)
    beam_latent_attention_simt_kernel(BeamLatentAttentionArguments<Float> a) {
  const Span span = history_span(a, blockIdx.x / a.M);
  const BeamLatentProblem<Float> problem(a, span, false);
  if (begin_beam_latent(problem)) attend_simt(problem, blockIdx.z * SIMT_COLUMNS);
}

template <class Half, int STEPS, int COLUMNS>
__global__ void __launch_bounds__(512, 1)
    beam_latent_attention_tensor_core_kernel(BeamLatentAttentionArguments<Half> a, TensorCoreShape shape,
                                             bool aligned) {
  const Span span = history_span(a, blockIdx.x / a.M);
  const BeamLatentProblem<Half> problem(a, span, aligned);
  if (begin_beam_latent(problem)) attend_tensor_core<Half, 1, STEPS, COLUMNS>(problem, shape);
}

}  // namespace tightbeam::device
