// LatentAttention in CUDA: all M x H queries of a sample over its states, which are keys and values at once.
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "ops/latent_attention/arguments.h"
#ifndef __CUDACC_RTC__
#include "ops/latent_attention/launch_plan.h"
#endif

namespace tightbeam::device {

// A block's part, the `Problem` of attention_rows.cuh: some queries of a sample (head by head, so that in the K form
// those of a tile have few different heads) over a split of the source.
template <class Float>
struct LatentProblem {
  const LatentAttentionArguments<Float>& a;
  const SplitResult<Float>& result;
  int K, D, split, sample, first_query, queries, begin, end;
  bool aligned;

  __device__ LatentProblem(const LatentAttentionArguments<Float>& a, const SplitResult<Float>& result,
                           int block_queries, int positions, bool aligned)
      : a(a), result(result), K(a.K), D(a.G * a.K), aligned(aligned) {
    const int all = a.M * a.H, blocks = (all + block_queries - 1) / block_queries;
    int i = blockIdx.x;
    first_query = i % blocks * block_queries;
    i /= blocks;
    split = i % result.splits;
    sample = i / result.splits;
    queries = min(block_queries, all - first_query);
    begin = split * positions;
    end = min(begin + positions, a.N);
  }

  __device__ int head(int j) const { return (first_query + j) / a.M; }
  __device__ long long row(int j) const { return static_cast<long long>(sample) * a.M + (first_query + j) % a.M; }
  __device__ int first_group(int j) const { return head(j) / (a.H / a.G); }

  __device__ float query(int j, int column) const {
    const int k = column - first_group(j) * K;
    if (k < 0 || k >= K) return 0.0f;
    return to_float(a.query[(row(j) * a.H + head(j)) * K + k]);
  }
  __device__ const Float* pack(int n, int column) const {
    return a.states + (static_cast<long long>(sample) * a.N + n) * D + column;
  }
  __device__ float number(int n, int column) const { return to_float(*pack(n, column)); }
  __device__ float key(int n, int column) const {
    const int first = column - column % K;
    return rotated(a, n, column % K, [&](int c) { return number(n, first + c); });
  }
  __device__ void load_keys(unsigned (&b)[2][2], const Float* corner, int stride, int n, int column) const {
    load_key_fragments(b, corner, stride);
    if constexpr (sizeof(Float) == 2)
      if (a.rotary > 0) turn_key_fragments(b, corner, stride, a, column, [&](int i) { return min(n + i, a.N - 1); });
  }
  __device__ bool counts(int n) const { return a.mask[static_cast<long long>(sample) * a.N + n]; }
  __device__ float score(int j, int n, float dot) const {
    if (!a.key_scales) return a.scale * dot;
    return a.scale * dot * a.key_scales[(static_cast<long long>(sample) * a.G + first_group(j)) * a.N + n];
  }

  __device__ void put(int j, int column, const PartialSoftmax& softmax, float sum) const {
    const long long place = row(j) * a.H + head(j);
    device::put(result, split, place, column, softmax.row_sum == 0.0f ? 0.0f : sum / softmax.row_sum);
    if (column == 0)
      put_lse(result, split, place, softmax.row_sum == 0.0f ? -infinity() : softmax.row_max + logf(softmax.row_sum));
  }
};

template <class Float>
__global__ void __launch_bounds__(SIMT_THREADS, 1)
    latent_attention_simt_kernel(LatentAttentionArguments<Float> a, int positions, SplitResult<Float> result) {
  attend_simt(LatentProblem<Float>(a, result, SIMT_QUERIES, positions, false), blockIdx.y * SIMT_COLUMNS);
}

template <class Half, int TILES, int STEPS, int COLUMNS>
__global__ void __launch_bounds__(512, 1)
    latent_attention_tensor_core_kernel(LatentAttentionArguments<Half> a, TensorCoreShape shape, int positions,
                                        bool aligned, SplitResult<Half> result) {
  attend_tensor_core<Half, TILES, STEPS, COLUMNS>(LatentProblem<Half>(a, result, 16 * TILES, positions, aligned),
                                                  shape);
}

}  // namespace tightbeam::device
