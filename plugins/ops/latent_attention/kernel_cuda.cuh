// LatentAttention in CUDA: all M x H queries of a sample over its states, which are keys and values at once.
#pragma once

#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/attention_tensor_core.cuh"
#include "ops/latent_attention/arguments.h"
#ifndef __CUDACC_RTC__
#include "ops/latent_attention/launch_plan.h"
#endif

namespace tightbeam::device {

// The work of a block, as the `Problem` of attention_rows.cuh and attention_tensor_core.cuh: some queries of a sample
// over a split of the source. Queries are in the order of heads, so that in the K form a tile has few different heads.
template <class Float>
struct LatentProblem {
  const LatentAttentionArguments<Float>& a;
  const SplitResult<Float>& result;
  const Float* states;  // of the sample
  const bool* mask;
  int K, D, split, sample, first_query, queries, begin, end;
  using Slot = bool;
  static constexpr Slot NO_SLOT = false;
  static constexpr bool HAS_SLOTS = false;

  // The grid's x counts blocks of a sample's queries, y the splits, z the samples.
  __device__ LatentProblem(const LatentAttentionArguments<Float>& a, const SplitResult<Float>& result, int block,
                           int block_queries, int positions)
      : a(a),
        result(result),
        K(a.K),
        D(a.G * a.K),
        split(blockIdx.y),
        sample(blockIdx.z),
        first_query(block * block_queries),
        queries(min(block_queries, a.M * a.H - first_query)),
        begin(split * positions),
        end(min(begin + positions, a.N)) {
    states = a.states + static_cast<long long>(sample) * a.N * D;
    mask = a.mask + static_cast<long long>(sample) * a.N;
  }

  __device__ int head(int j) const { return (first_query + j) / a.M; }
  __device__ int first_group(int j) const { return head(j) / (a.H / a.G); }
  // Query j's index in [R, H].
  __device__ long long place(int j) const {
    const long long row = static_cast<long long>(sample) * a.M + (first_query + j) % a.M;
    return row * a.H + head(j);
  }

  __device__ float query(int j, int column) const {
    const int k = column - first_group(j) * K;
    return k < 0 || k >= K ? 0.0f : to_float(a.query[place(j) * K + k]);
  }
  __device__ void copy_query(Float* to, int j, int column) const {
    const int k = j < queries ? column - first_group(j) * K : -1;
    const bool own = k >= 0 && k < K;
    copy_async_16_or_zeros(shared_address(to), a.query + (own ? place(j) * K + k : 0), own);
  }

  __device__ const Float* column_start(int column) const { return states + column; }
  __device__ const Float* pack(const Float* start, int n, Slot) const { return start + static_cast<long long>(n) * D; }
  __device__ float number(int n, int column) const { return to_float(*pack(column_start(column), n, true)); }
  __device__ float key(int n, int column) const {
    const int first = column - column % K;
    return rotated(a, n, column % K, [&](int c) { return number(n, first + c); });
  }
  __device__ int table_row(int n) const { return min(n, a.N - 1); }

  __device__ bool counts(int n) const { return mask[n]; }
  __device__ bool slot(int n) const { return mask[n]; }
  __device__ float key_scale(int j, int n) const {
    return a.key_scales[(static_cast<long long>(sample) * a.G + first_group(j)) * a.N + n];
  }
  // PLAIN: for a kernel that runs only without a cap and a bias.
  template <bool PLAIN>
  __device__ float score(int j, int n, float dot) const {
    float score = a.key_scales ? a.scale * dot * key_scale(j, n) : a.scale * dot;
    if (PLAIN) return score;
    score = capped(score, a.softcap);
    return a.key_bias ? score + a.key_bias[static_cast<long long>(head(j)) * a.key_bias_positions + n] : score;
  }

  __device__ void put(int j, int column, const PartialSoftmax& softmax, float sum) const {
    device::put(result, split, place(j), column, softmax.row_sum == 0.0f ? 0.0f : sum / softmax.row_sum);
    if (column == 0) put_lse(result, split, place(j), softmax.lse());
  }
  __device__ void put_pack(int j, int column, const PartialSoftmax& softmax, const float* sums) const {
    const long long row = place(j);
    const float factor = softmax.row_sum == 0.0f ? 0.0f : 1.0f / softmax.row_sum;
    device::put_pack(result, split, row, column, sums, factor);
    if (column == 0) put_lse(result, split, row, softmax.lse());
  }
};

template <class Float>
__global__ void __launch_bounds__(SIMT_THREADS, 1)
    latent_attention_simt_kernel(LatentAttentionArguments<Float> a, int positions, SplitResult<Float> result) {
  const int blocks = (a.M * a.H + SIMT_QUERIES - 1) / SIMT_QUERIES, block = blockIdx.x % blocks;
  attend_simt(LatentProblem<Float>(a, result, block, SIMT_QUERIES, positions), blockIdx.x / blocks * SIMT_COLUMNS);
}

template <class Half, int TILES, int STEPS, int COLUMNS, bool ROTATED>
__global__ void __launch_bounds__(512, 1)
    latent_attention_tensor_core_kernel(LatentAttentionArguments<Half> a, TensorCoreShape shape, int positions,
                                        SplitResult<Half> result) {
  const LatentProblem<Half> problem(a, result, blockIdx.x, 16 * TILES, positions);
  TensorCoreAttention<Half, TILES, STEPS, COLUMNS, ROTATED, LatentProblem<Half>> attention(problem, shape);
  attention.run();
  attention.put();
}

}  // namespace tightbeam::device
