// SourceAttention in CUDA. One block has the queries of all beams and heads that share a key/value head, so keys and
// values come from device memory once. A long source is split over blocks, and a second kernel combines the splits.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_plan.h"
#include "ops/source_attention/arguments.h"
#ifndef __CUDACC_RTC__
#include "ops/source_attention/launch_plan.h"
#endif

namespace tightbeam::device {

// The work of a block of either kernel: some queries of a sample and key/value head over a split of the source.
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

  // Index in [R, H] of query j of the sample and key/value head.
  __device__ long long place(const SourceAttentionArguments<Float>& a, int j) const {
    const int Q = a.H / a.G;
    return (static_cast<long long>(sample) * a.M + j / Q) * a.H + g * Q + j % Q;
  }
};

template <class Float>
struct SourceRows {
  const SourceAttentionArguments<Float>& a;
  const Float *keys, *values;
  const bool* mask;
  int begin, end, K, V, first_query, first_head;
  static constexpr bool has_rotation = false;

  __device__ int look_up(int t) const { return mask[t] ? 0 : -1; }
  __device__ void locate(int t, int, const Float** key, const Float** value) const {
    *key = keys + static_cast<long long>(t) * K;
    *value = values + static_cast<long long>(t) * V;
  }
  __device__ float score(int q, int t, float dot) const {
    const float score = capped(a.scale * dot, a.softcap);
    if (!a.key_bias) return score;
    const int head = first_head + (first_query + q) % (a.H / a.G);
    return score + a.key_bias[static_cast<long long>(head) * a.key_bias_positions + t];
  }
  __device__ void rotation(int, int, float*, float*) const {}
};

// The SIMT kernel: for float32, and for heads too wide for source_attention_tensor_core_kernel.
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
  const SourceRows<Float> rows = {a,
                                  a.key + first_position * a.K,
                                  a.value + first_position * a.V,
                                  a.mask + static_cast<long long>(block.sample) * a.N,
                                  block.begin,
                                  block.end,
                                  a.K,
                                  a.V,
                                  block.first_query,
                                  block.g * (a.H / a.G)};
  RowStream<Float, QUERIES, CHUNKS, SourceRows<Float>> stream;
  stream.run(rows, query, plan.K_padded, plan.lanes, warp, plan.parts, first_column);
  stream.store(all_softmax + warp * QUERIES, all_sums + warp * QUERIES * columns, plan.lanes);
  __syncthreads();
  for (int i = threadIdx.x; i < queries * slice; i += blockDim.x) {
    const int q = i / slice, column = i % slice;
    const long long row = block.place(a, block.first_query + q);
    float lse;
    const float value = combine_parts(
        plan.parts, [&](int part) { return all_softmax[part * QUERIES + q]; },
        [&](int part) { return all_sums[(part * QUERIES + q) * columns + column]; }, &lse);
    put(result, block.split, row, first_column + column, value);
    if (first_column + column == 0) put_lse(result, block.split, row, lse);
  }
}

// The tensor-core kernel. Each warp goes through its own tiles of 16 positions, two in shared memory at a time, without
// a barrier of the block. Scores and weights stay in the registers of the matrix fragments. For a position and 16
// queries (fewer are padded to 16), 2 (K + V) bytes are read for 32 (K + V) operations. That is far below the rate of
// the tensor cores, so the lower bound of the time is the bytes of keys and values.
template <class Half, int TILES, int WIDTH>
__global__ void __launch_bounds__(128, TILES* WIDTH == 64 ? 4 : 2)
    source_attention_tensor_core_kernel(SourceAttentionArguments<Half> a, int positions, bool aligned,
                                        SplitResult<Half> result) {
  constexpr int STRIDE = WIDTH + 8, STEPS = WIDTH / 16, WARPS = 4;
  constexpr int PACKS = WIDTH / 8, ROWS = WARP / PACKS;  // packs of a row; rows that a warp copies at once
  const SourceBlock<Half> block(a, 16 * TILES, result.splits, positions);
  const int queries = min(16 * TILES, block.queries(a) - block.first_query);
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  Half* stages = shared_memory<Half>() + warp * 4 * 16 * STRIDE;  // [2 stages, keys and values, 16, STRIDE]
  constexpr unsigned ROW_BYTES = STRIDE * 2, VALUES_AT = 16 * ROW_BYTES, STAGE_BYTES = 2 * VALUES_AT;

  unsigned query[TILES][STEPS][4];
#pragma unroll
  for (int row = 0; row < 2 * TILES; ++row) {
    const int q = row * 8 + lane / 4;
    const Half* from = a.query + (q < queries ? block.place(a, block.first_query + q) * a.K : 0);
#pragma unroll
    for (int half = 0; half < 2 * STEPS; ++half) {
      const int column = half * 8 + lane % 4 * 2;
      query[row / 2][half / 2][row % 2 + half % 2 * 2] = load_two(from, column, q < queries ? a.K : 0, aligned);
    }
  }

  const bool* mask = a.mask + static_cast<long long>(block.sample) * a.N;
  const auto counts_at = [&](int begin) { return lane < 16 && begin + lane < block.end && mask[begin + lane]; };
  // A lane copies the same columns of every ROWS-th row of each tile.
  const int first_row = lane / PACKS, column = lane % PACKS * 8;
  const unsigned key_rows = column < a.K ? 0xffff : 0, value_rows = column < a.V ? 0xffff : 0;
  const SharedAddress copied_at = shared_address(stages + first_row * STRIDE + column);
  const auto copy_rows = [&](const Half* from, int width, SharedAddress to, unsigned rows) {
#pragma unroll
    for (int row = 0; row < 16; row += ROWS)
      copy_async_16_or_zeros(to + row * ROW_BYTES, from + row * width, rows >> row & 1);
  };
  const auto store_rows = [&](const Half* from, int width, Half* to, unsigned rows) {
#pragma unroll 1
    for (int row = 0; row < 16; row += ROWS)
      store_16(to + row * STRIDE, load_pack(from + row * width - column, column, rows >> row & 1 ? width : 0, false));
  };
  const long long first_position =
      (static_cast<long long>(block.sample) * a.G + block.g) * a.N + block.begin + warp * 16;
  const Half* key = a.key + (first_position + first_row) * a.K + column;
  const Half* value = a.value + (first_position + first_row) * a.V + column;
  bool next_mask = counts_at(block.begin + warp * 16);
  // Starts the copy of the next tile, which ends before `end`, and returns which of its positions count. A tile in
  // which no position counts is not read.
  const auto load = [&](int end, unsigned stage) {
    const unsigned votes = __ballot_sync(WHOLE_WARP, next_mask), rows = votes >> first_row;
    next_mask = counts_at(end);
    if (votes && aligned) {
      copy_rows(key, a.K, copied_at + stage, rows & key_rows);
      copy_rows(value, a.V, copied_at + stage + VALUES_AT, rows & value_rows);
    } else if (votes) {
      Half* to = stages + stage / 2 + first_row * STRIDE + column;
      store_rows(key, a.K, to, rows);
      store_rows(value, a.V, to + 16 * STRIDE, rows);
    }
    key += WARPS * 16 * a.K;
    value += WARPS * 16 * a.V;
    copy_async_commit();
    return votes;
  };
  const SharedAddress key_fragments_at = shared_address(stages + key_fragment_at(lane, STRIDE));
  const SharedAddress value_fragments_at = shared_address(stages + value_fragment_at(lane, STRIDE)) + VALUES_AT;

  float row_max[TILES][2], row_sum[TILES][2], sums[TILES][WIDTH / 8][4] = {};
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    row_max[tile][0] = row_max[tile][1] = -infinity();
    row_sum[tile][0] = row_sum[tile][1] = 0.0f;
  }

  unsigned next_counts = load(block.begin + (warp + WARPS) * 16, 0), stage = 0;
  for (int begin = block.begin + warp * 16; begin < block.end; begin += WARPS * 16, stage ^= STAGE_BYTES) {
    const unsigned counts = next_counts;
    next_counts = load(begin + 2 * WARPS * 16, stage ^ STAGE_BYTES);
    copy_async_wait<1>();
    __syncwarp();
    if (counts) {
      float scores[TILES][2][4] = {};
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (step * 16 >= a.K) continue;
        unsigned b[2][2];
        load_key_fragments(b, key_fragments_at + stage + step * 32);
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
          const float base = top == -infinity() ? 0.0f : top;  // so that the weight of -inf is 0
          const float shrink = expf(row_max[tile][half] - base);
          row_max[tile][half] = top;
          row_sum[tile][half] *= shrink;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            row[i] = expf(row[i] - base);
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
        load_value_fragments(b, value_fragments_at + stage + step * 32);
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

  // The results of the warps, in the memory of the stages: [WARPS, 16 TILES] softmaxes, [WARPS, 16 TILES, WIDTH] sums.
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
  for (int q = warp; q < queries; q += WARPS) {
    const long long row = block.place(a, block.first_query + q);
    for (int c = lane; c < a.V; c += WARP) {
      float lse;
      const float number = combine_parts(
          WARPS, [&](int part) { return all_softmax[part * 16 * TILES + q]; },
          [&](int part) { return all_sums[(part * 16 * TILES + q) * WIDTH + c]; }, &lse);
      put(result, block.split, row, c, number);
      if (c == 0) put_lse(result, block.split, row, lse);
    }
  }
}

}  // namespace tightbeam::device
