// SourceAttention in CUDA. The queries of all beams and heads that share a key/value head are answered by one block, so
// keys and values come from device memory once; a long source is split over blocks and joined by a second kernel.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_plan.h"
#include "ops/source_attention/arguments.h"
#ifndef __CUDACC_RTC__
#include "ops/source_attention/launch_plan.h"
#endif

namespace tightbeam::device {

// The work of a block of either kernel: some queries of a sample and key/value head, and a split of the source.
template <class Float>
struct SourceBlock {
  int sample, g, first_query, split, begin, end;

  __device__ SourceBlock(const SourceAttentionArguments<Float>& a, int queries, int splits, int positions) {
    const int chunks = (a.M * (a.H / a.G) + queries - 1) / queries;
    int i = blockIdx.x;
    first_query = i % chunks * queries;
    i /= chunks;
    split = i % splits;
    i /= splits;
    g = i % a.G;
    sample = i / a.G;
    begin = split * positions;
    end = min(begin + positions, a.N);
  }

  __device__ int queries(const SourceAttentionArguments<Float>& a) const { return a.M * (a.H / a.G); }

  // Query j of a sample and key/value head: its place among [R, H].
  __device__ long long place(const SourceAttentionArguments<Float>& a, int j) const {
    const int Q = a.H / a.G;
    return (static_cast<long long>(sample) * a.M + j / Q) * a.H + g * Q + j % Q;
  }
};

template <class Float>
struct SourceRows {
  const Float *keys, *values;
  const bool* mask;
  float scale;
  int begin, end, K, V;
  static constexpr bool has_rotation = false;

  __device__ bool counts(int t) const { return mask[t]; }
  __device__ void locate(int t, const Float** key, const Float** value) const {
    *key = keys + static_cast<long long>(t) * K;
    *value = values + static_cast<long long>(t) * V;
  }
  __device__ float score(int, int, float dot) const { return scale * dot; }
  __device__ void rotation(int, int, float*, float*) const {}
};

// Without tensor cores: float32, and heads too wide for source_attention_tensor_core_kernel.
template <class Float, int QUERIES, int CHUNKS>
__global__ void __launch_bounds__(256, 2)
    source_attention_stream_kernel(SourceAttentionArguments<Float> a, RowStreamPlan plan, int positions,
                                   SplitResult<Float> result) {
  const SourceBlock<Float> block(a, QUERIES, result.splits, positions);
  const int columns = plan.lanes * CHUNKS * Pack<Float>::size, first_column = blockIdx.y * columns;
  const int slice = min(columns, a.V - first_column), queries = min(QUERIES, block.queries(a) - block.first_query);
  const int warp = threadIdx.x / WARP;
  float* query = shared_memory<float>();
  float* all_sums = query + QUERIES * plan.K_padded;
  PartialSoftmax* all_softmax = reinterpret_cast<PartialSoftmax*>(all_sums + plan.parts * QUERIES * columns);

  for (int i = threadIdx.x; i < QUERIES * plan.K_padded; i += blockDim.x) {
    const int q = i / plan.K_padded, c = i % plan.K_padded;
    query[i] = c < a.K && q < queries ? to_float(a.query[block.place(a, block.first_query + q) * a.K + c]) : 0.0f;
  }
  __syncthreads();
  const long long first_position = (static_cast<long long>(block.sample) * a.G + block.g) * a.N;
  const SourceRows<Float> rows = {a.key + first_position * a.K,
                                  a.value + first_position * a.V,
                                  a.mask + static_cast<long long>(block.sample) * a.N,
                                  a.scale,
                                  block.begin,
                                  block.end,
                                  a.K,
                                  a.V};
  RowStream<Float, QUERIES, CHUNKS, SourceRows<Float>> stream;
  stream.run(rows, query, plan.K_padded, plan.lanes, warp, plan.parts, first_column);
  stream.store(all_softmax + warp * QUERIES, all_sums + warp * QUERIES * columns, plan.lanes);
  __syncthreads();
  for (int i = threadIdx.x; i < queries * slice; i += blockDim.x) {
    const int q = i / slice, column = i % slice;
    const long long row = block.place(a, block.first_query + q);
    float lse;
    const float value = join_parts(
        plan.parts, [&](int part) { return all_softmax[part * QUERIES + q]; },
        [&](int part) { return all_sums[(part * QUERIES + q) * columns + column]; }, &lse);
    put(result, block.split, row, first_column + column, value);
    if (first_column + column == 0) put_lse(result, block.split, row, lse);
  }
}

// With tensor cores. Each warp goes through its own tiles of 16 positions, two in shared memory at a time, without a
// barrier of the block; scores and weights stay in the registers of the matrix fragments. Per position and 16 queries
// (fewer are padded to them) 2 (K + V) bytes are read for 32 (K + V) operations: far below the matrix rate, so the
// floor is the bytes of keys and values.
template <class Half, int TILES, int WIDTH>
__global__ void __launch_bounds__(128)
    source_attention_tensor_core_kernel(SourceAttentionArguments<Half> a, int positions, bool aligned,
                                        SplitResult<Half> result) {
  constexpr int STRIDE = WIDTH + 8, STEPS = WIDTH / 16, PACKS = WIDTH / 8, WARPS = 4;
  const SourceBlock<Half> block(a, 16 * TILES, result.splits, positions);
  const int queries = min(16 * TILES, block.queries(a) - block.first_query);
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  Half* stages = shared_memory<Half>() + warp * 4 * 16 * STRIDE;  // [2 stages, keys and values, 16, STRIDE]

  unsigned query[TILES][STEPS][4];
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int q = tile * 16 + lane / 4 + r % 2 * 8, column = step * 16 + lane % 4 * 2 + r / 2 * 8;
        const Half zero = from_float<Half>(0.0f);
        const Half* row = a.query + (q < queries ? block.place(a, block.first_query + q) * a.K : 0);
        query[tile][step][r] = pack_two(q < queries && column < a.K ? row[column] : zero,
                                        q < queries && column + 1 < a.K ? row[column + 1] : zero);
      }

  const long long first_position = (static_cast<long long>(block.sample) * a.G + block.g) * a.N;
  const bool* mask = a.mask + static_cast<long long>(block.sample) * a.N;
  // Starts a tile on its way; returns which of its positions count. One in which none does is not read.
  const auto load = [&](int begin, int stage) {
    const bool counts = lane < 16 && begin + lane < block.end && mask[begin + lane];
    const unsigned votes = __ballot_sync(WHOLE_WARP, counts);
    if (votes)
      for (int i = lane; i < 2 * 16 * PACKS; i += WARP) {
        const int row = i / PACKS % 16, column = i % PACKS * 8;
        const bool is_value = i >= 16 * PACKS;
        const int width = is_value ? a.V : a.K;
        const Half* from = (is_value ? a.value : a.key) + (first_position + begin + row) * width;
        copy_pack(stages + ((stage * 2 + is_value) * 16 + row) * STRIDE + column, votes >> row & 1 ? from : nullptr,
                  column, width, aligned);
      }
    copy_async_commit();
    return votes;
  };

  float row_max[TILES][2], row_sum[TILES][2], sums[TILES][WIDTH / 8][4] = {};
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    row_max[tile][0] = row_max[tile][1] = -infinity();
    row_sum[tile][0] = row_sum[tile][1] = 0.0f;
  }

  unsigned next_counts = load(block.begin + warp * 16, 0);
  int stage = 0;
  for (int begin = block.begin + warp * 16; begin < block.end; begin += WARPS * 16, stage ^= 1) {
    const unsigned counts = next_counts;
    next_counts = load(begin + WARPS * 16, stage ^ 1);
    copy_async_wait<1>();
    __syncwarp();
    if (counts) {
      const Half *keys = stages + stage * 2 * 16 * STRIDE, *values = keys + 16 * STRIDE;
      float scores[TILES][2][4] = {};
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step * 16 >= a.K) continue;
        unsigned b[2][2];
        load_key_fragments(b, keys + step * 16, STRIDE);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          mma_16x8x16<Half>(scores[tile][0], query[tile][step], b[0]);
          mma_16x8x16<Half>(scores[tile][1], query[tile][step], b[1]);
        }
      }
      unsigned weights[TILES][4];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // rows lane / 4 and lane / 4 + 8
          float row[4], top = row_max[tile][half];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int position = i / 2 * 8 + lane % 4 * 2 + i % 2;
            row[i] = counts >> position & 1 ? a.scale * scores[tile][i / 2][half * 2 + i % 2] : -infinity();
            top = fmaxf(top, row[i]);
          }
          top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, 1));
          top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, 2));
          const float shrink = weight_below(row_max[tile][half], top);
          row_max[tile][half] = top;
          row_sum[tile][half] *= shrink;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            row[i] = weight_below(row[i], top);
            row_sum[tile][half] += row[i];
          }
          weights[tile][half] = pack_two<Half>(row[0], row[1]);
          weights[tile][half + 2] = pack_two<Half>(row[2], row[3]);
#pragma unroll
          for (int n = 0; n < WIDTH / 8; ++n) sums[tile][n][half * 2] *= shrink, sums[tile][n][half * 2 + 1] *= shrink;
        }
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step * 16 >= a.V) continue;
        unsigned b[2][2];
        load_value_fragments(b, values + step * 16, STRIDE);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          mma_16x8x16<Half>(sums[tile][step * 2], weights[tile], b[0]);
          mma_16x8x16<Half>(sums[tile][step * 2 + 1], weights[tile], b[1]);
        }
      }
    }
    __syncwarp();  // the stage is free again
  }
  copy_async_wait<0>();
  __syncthreads();

  // The warps' parts, over the stages: [WARPS, 16 TILES] softmaxes, [WARPS, 16 TILES, WIDTH] sums.
  PartialSoftmax* all_softmax = shared_memory<PartialSoftmax>();
  float* all_sums = shared_memory<float>(WARPS * 16 * TILES * sizeof(PartialSoftmax));
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_sum[tile][half] += __shfl_xor_sync(WHOLE_WARP, row_sum[tile][half], 1);
      row_sum[tile][half] += __shfl_xor_sync(WHOLE_WARP, row_sum[tile][half], 2);
      const int q = warp * 16 * TILES + tile * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0) all_softmax[q] = {row_max[tile][half], row_sum[tile][half]};
#pragma unroll
      for (int n = 0; n < WIDTH / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) all_sums[q * WIDTH + n * 8 + lane % 4 * 2 + i] = sums[tile][n][half * 2 + i];
    }
  __syncthreads();
  for (int i = threadIdx.x; i < queries * a.V; i += blockDim.x) {
    const int q = i / a.V, column = i % a.V;
    const long long row = block.place(a, block.first_query + q);
    float lse;
    const float value = join_parts(
        WARPS, [&](int part) { return all_softmax[part * 16 * TILES + q]; },
        [&](int part) { return all_sums[(part * 16 * TILES + q) * WIDTH + column]; }, &lse);
    put(result, block.split, row, column, value);
    if (column == 0) put_lse(result, block.split, row, lse);
  }
}

}  // namespace tightbeam::device
