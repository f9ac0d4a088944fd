// Tensor-core attention over rows that are keys and values at once, for latent_attention and beam_latent_attention.
//
// A `Problem` has the queries and rows of a block. Its queries are as wide as a row, D = G K numbers, and zero outside
// their own head, so that one matrix product serves the EL, X and K form.
//   queries, begin, end, D, K           of this block; rows and pointers are aligned to 16 bytes, K is whole packs
//   first_group(j)                      query j has K numbers, from column first_group(j) K on
//   copy_query(to, j, column)           starts the copy of 8 columns of query j to shared memory
//   column_start(column), pack(start, n, slot)  address of 16 bytes of row n, from a column on
//   slot(n)                             the row's Slot, asked for one tile ahead; NO_SLOT if the row does not count
//   HAS_SLOTS                           true if `pack` needs the slot of its row
//   score<true>(j, n, dot)              a row's score, without a cap and without a bias of the key
//   a, table_row(n)                     the arguments, and the row of the rotation tables, if keys are rotated
//   put_pack(j, column, softmax, sums)  takes 8 results
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_plan.h"

namespace tightbeam::device {

// exp(score - base) by one instruction. The product's error, 2^-24 of the exponent, is below the rounding of a weight.
__device__ __forceinline__ float weight_at(float score, float base) { return exp2f((score - base) * 1.44269504f); }

// The b fragments of 32 columns of 8 rows. The rows (positions) are b's columns, and b[i] has the columns from 16 i on.
template <class Half>
__device__ __forceinline__ void load_keys(unsigned (&b)[2][2], const Half* corner, int stride) {
  const int lane = threadIdx.x % WARP;
  unsigned fragments[4];
  load_matrices(fragments, corner + lane % 8 * stride + lane / 8 * 8);
  b[0][0] = fragments[0], b[0][1] = fragments[1], b[1][0] = fragments[2], b[1][1] = fragments[3];
}

// The rotation of 8 columns from `column` on: -1 if they are not rotated, else twice their index in a row of the
// tables, plus 1 in the second half of the rotated numbers, whose partners are before them.
template <class Arguments>
__device__ __forceinline__ int rotation_of(const Arguments& a, int column) {
  const int k = column % a.K, half = a.rotary / 2;
  if (k >= a.rotary || column >= a.G * a.K) return -1;
  return k < half ? 2 * k : 2 * (k - half) + 1;
}

// A register of such fragments, rotated: the two numbers at `own`, whose partners are rotary / 2 numbers away in the
// row. `rotation` is that of their 8 columns. `table` is the index of this lane's first number in the rotation tables.
template <class Half, class Arguments>
__device__ __forceinline__ unsigned rotated_key(const Half* own, const Arguments& a, int rotation, int table) {
  const unsigned two = *reinterpret_cast<const unsigned*>(own);
  if (rotation < 0) return two;
  const int half = a.rotary / 2;
  const unsigned partner = *reinterpret_cast<const unsigned*>(own + (rotation % 2 == 0 ? half : -half));
  const float2 cosine = *reinterpret_cast<const float2*>(a.cosines + table + rotation / 2);
  const float2 sine = *reinterpret_cast<const float2*>(a.sines + table + rotation / 2);
  const float sign = rotation % 2 == 0 ? -1.0f : 1.0f;
  return pack_two<Half>(unpack<Half>(two, 0) * cosine.x + unpack<Half>(partner, 0) * (sign * sine.x),
                        unpack<Half>(two, 1) * cosine.y + unpack<Half>(partner, 1) * (sign * sine.y));
}

// A warp owns COLUMNS columns of the rows. It computes their share of the scores, which the block adds up in shared
// memory, and their sums of the output, in the registers of the matrix fragments. So each row is copied to shared
// memory once, by the warps that own its columns, and serves both products. A block has 16 TILES queries, and 16 STEPS
// rows at a time.
//
// Take 64 queries (4 beams, 16 heads) and D = 1024 in float16 on an H200, with 4.8 TB/s and at most about 600 TFLOP/s
// of mma.sync. A position has 2 KB and takes 2 x 2 x 64 x 1024 operations, 128 for each byte, so 4.8 TB/s would need
// 614 TFLOP/s: bytes and operations take the same time. With TILES = 2, two blocks read each row, the second one from
// L2.
//
// For a tile of 32 positions (64 KB), a block moves 64 KB into shared memory, 2 x 64 KB out of it, and 2 x 64 KB of
// score shares through it. That is 5 x 64 KB, or 2,560 cycles at 128 bytes a cycle, against 1,600 cycles of mma.sync
// and 1,580 cycles of the block's share of the memory bandwidth. So shared memory is the limit: at most 0.6 of the
// bandwidth can be reached, and 0.4 to 0.5 with the two barriers of a tile. Issue takes as long, with about 650
// instructions of a thread for a tile.
//
// With TILES = 2 and 512 threads, a thread has 64 registers of sums and 32 of queries. What each tile needs again
// (parts_, rotations_) is in shared memory, since no register is free.
template <class Half, int TILES, int STEPS, int COLUMNS, bool ROTATED, class Problem>
class TensorCoreAttention {
 public:
  __device__ __forceinline__ TensorCoreAttention(const Problem& problem, const TensorCoreShape& shape)
      : problem_(problem),
        lane_(threadIdx.x % WARP),
        warp_(threadIdx.x / WARP),
        stride_(shape.stride),
        own_column_(warp_ * COLUMNS),
        column_(own_column_ + lane_ % PACKS * 8),
        rows_(shared_memory<Half>()),
        scores_(shared_memory<float>(shape.scores_at)),
        weights_(shared_memory<Half>(shape.weights_at)),
        row_max_(shared_memory<float>(shape.state_at)),
        row_sum_(row_max_ + QUERIES),
        shrinks_(row_sum_ + QUERIES),
        parts_(shared_memory<int2>(shape.parts_at)),
        rotations_(reinterpret_cast<int*>(parts_ + 2)) {
    for (int i = threadIdx.x; i < QUERIES; i += blockDim.x) row_max_[i] = -infinity(), row_sum_[i] = 0.0f;
#pragma unroll 1
    for (int tile = 0; tile < TILES; ++tile) {
      const int last = min(16 * tile + 15, problem.queries - 1);
      int2 part = {0, 0};
      if (last >= 16 * tile) {
        part.x = problem.first_group(16 * tile) * problem.K / COLUMNS;
        part.y = ((problem.first_group(last) + 1) * problem.K - 1) / COLUMNS + 1;
      }
      if (threadIdx.x == 0) parts_[tile] = part;
    }
    if constexpr (ROTATED)
      for (int i = threadIdx.x; i < PACKS * shape.warps; i += blockDim.x) rotations_[i] = rotation_of(problem.a, 8 * i);
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int i = 0; i < COLUMNS / 2; ++i) sums_[tile][i / 4][i % 4] = 0.0f;
    // The queries go through the second stage of the rows, and if TILES > STEPS through the scores behind it too.
#pragma unroll 1
    for (int q = lane_ / PACKS; q < QUERIES; q += ROWS)
      problem.copy_query(rows_ + (POSITIONS + q) * stride_ + column_, q, column_);
    copy_async_commit();
  }

  // Called by the whole block, once.
  __device__ __forceinline__ void run() {
    Slot slot = lane_slot(problem_.begin);  // of this lane's position, for the copy of the next tile
    unsigned next_counts = __ballot_sync(WHOLE_WARP, slot != Problem::NO_SLOT);
    start_copy(problem_.begin, 0, next_counts, slot);
    take_queries();
    slot = lane_slot(problem_.begin + POSITIONS);
    int stage = 0;
    for (int begin = problem_.begin; begin < problem_.end; begin += POSITIONS, stage ^= 1) {
      const unsigned counts = next_counts;
      copy_async_wait<0>();
      // This tile has arrived, and the memory of the last one is free: in this warp's columns and in their partners'.
      if constexpr (ROTATED)
        __syncthreads();
      else
        __syncwarp();
      next_counts = __ballot_sync(WHOLE_WARP, slot != Problem::NO_SLOT);
      start_copy(begin + POSITIONS, stage ^ 1, next_counts, slot);
      const Half* tile_rows = rows_ + stage * POSITIONS * stride_ + own_column_;
      if (counts) {
        multiply_keys(tile_rows, begin);
        __syncthreads();
        weigh(begin, counts);
        __syncthreads();
      }
      slot = lane_slot(begin + 2 * POSITIONS);  // not earlier, since no register is free before
      if (counts) multiply_values(tile_rows);
    }
  }

  // Passes the results to the problem, 8 numbers at a time, through the memory of the rows.
  __device__ __forceinline__ void put() {
    copy_async_wait<0>();
    __syncthreads();
    float* staged = reinterpret_cast<float*>(rows_) + own_column_;  // [16, stride]
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          *reinterpret_cast<float2*>(staged + (lane_ / 4 + 8 * i) * stride_ + 8 * n + lane_ % 4 * 2) =
              make_float2(sums_[tile][n][2 * i], sums_[tile][n][2 * i + 1]);
      __syncwarp();
#pragma unroll 1
      for (int row = lane_ / PACKS; row < 16; row += ROWS) {
        const int q = 16 * tile + row;
        if (q < problem_.queries && column_ < problem_.D)
          problem_.put_pack(q, column_, PartialSoftmax{row_max_[q], row_sum_[q]},
                            staged + row * stride_ + lane_ % PACKS * 8);
      }
      __syncwarp();
    }
  }

 private:
  using Slot = typename Problem::Slot;
  static constexpr int QUERIES = 16 * TILES, POSITIONS = 16 * STEPS, WEIGHT_STRIDE = POSITIONS + 8;
  static constexpr int PACKS = COLUMNS / 8,
                       ROWS = WARP / PACKS;  // packs of a warp's columns; rows that it copies at once

  __device__ __forceinline__ Slot lane_slot(int begin) const {
    return lane_ < POSITIONS && begin + lane_ < problem_.end ? problem_.slot(begin + lane_) : Problem::NO_SLOT;
  }

  // Starts the copy of this warp's columns of a tile. Row n is zeros if bit n of `counts` is 0.
  __device__ __forceinline__ void start_copy(int begin, int stage, unsigned counts, Slot slot) {
    if (counts) {
      const auto start = problem_.column_start(column_);
      const int first = lane_ / PACKS;
      const unsigned own_counts = column_ < problem_.D ? counts >> first : 0;
      const SharedAddress to = shared_address(rows_ + (stage * POSITIONS + first) * stride_ + column_);
#pragma unroll(ROTATED ? 2 : POSITIONS / ROWS)
      for (int n = 0; n < POSITIONS; n += ROWS) {
        Slot row_slot = slot;
        if constexpr (Problem::HAS_SLOTS) row_slot = __shfl_sync(WHOLE_WARP, slot, first + n);
        copy_async_16_or_zeros(to + n * stride_ * sizeof(Half), problem_.pack(start, begin + first + n, row_slot),
                               own_counts >> n & 1);
      }
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void take_queries() {
    copy_async_wait<1>();
    __syncwarp();
    const Half* staged = rows_ + (POSITIONS + lane_ % 16) * stride_ + own_column_ + lane_ / 16 * 8;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
      for (int step = 0; step < COLUMNS / 16; ++step)
        load_matrices(queries_[tile][step], staged + 16 * tile * stride_ + 16 * step);
    __syncthreads();  // so that the scores' memory is free
  }

  // The positions of a query's shares are permuted by exclusive or, so that a warp's stores hit all banks.
  __device__ __forceinline__ static int permutation(int q) { return STEPS == 1 ? (q & 2) << 2 : (q & 3) << 3; }

  // Computes this warp's share of a tile's scores.
  __device__ __forceinline__ void multiply_keys(const Half* tile_rows, int begin) {
    bool takes_part[TILES], needed = false;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const int2 part = parts_[tile];
      takes_part[tile] = warp_ >= part.x && warp_ < part.y;
      needed = needed || takes_part[tile];
    }
    if (!needed) return;
    const int permuted = permutation(lane_ / 4);
    float* own_scores = scores_ + (warp_ * QUERIES + lane_ / 4) * POSITIONS + lane_ % 4 * 2;
#pragma unroll(ROTATED ? 1 : POSITIONS / 8)
    for (int n = 0; n < POSITIONS; n += 8) {
      int table = 0;
      if constexpr (ROTATED)
        table = problem_.table_row(begin + n + lane_ / 4) * (problem_.a.rotary / 2) + lane_ % 4 * 2;
      float shares[TILES][4] = {};
#pragma unroll
      for (int step = 0; step < COLUMNS / 16; step += 2) {
        const Half* corner = tile_rows + n * stride_ + 16 * step;
        unsigned b[2][2];
        if constexpr (ROTATED) {
          const int* rotations = rotations_ + (own_column_ + 16 * step) / 8;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            b[i / 2][i % 2] =
                rotated_key(corner + lane_ / 4 * stride_ + lane_ % 4 * 2 + 8 * i, problem_.a, rotations[i], table);
        } else {
          load_keys(b, corner, stride_);
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          mma_16x8x16<Half>(shares[tile], queries_[tile][step], b[0]);
          mma_16x8x16<Half>(shares[tile], queries_[tile][step + 1], b[1]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
        if (takes_part[tile])
#pragma unroll
          for (int i = 0; i < 2; ++i)
            *reinterpret_cast<float2*>(own_scores + (16 * tile + 8 * i) * POSITIONS + (n ^ permuted)) =
                make_float2(shares[tile][2 * i], shares[tile][2 * i + 1]);
    }
  }

  // Adds the shares up and turns a tile's scores into weights. A thread has two positions of a query; neighbouring
  // lanes have the others.
  __device__ __forceinline__ void weigh(int begin, unsigned counts) {
    constexpr int LANES = POSITIONS / 2;
    for (int i = threadIdx.x; i < QUERIES * LANES; i += blockDim.x) {
      const int q = i / LANES, n = i % LANES * 2;
      const int2 part = parts_[q / 16];
      const int first_warp = part.x, end_warp = part.y;
      const float* from = scores_ + q * POSITIONS + (n ^ permutation(q));
      float dots[2] = {};
#pragma unroll 4
      for (int w = first_warp; w < end_warp; ++w) {
        const float2 two = *reinterpret_cast<const float2*>(from + w * QUERIES * POSITIONS);
        dots[0] += two.x, dots[1] += two.y;
      }
      const float old = row_max_[q];
      float scores[2] = {-infinity(), -infinity()}, top = old;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (q < problem_.queries && (counts >> (n + j) & 1))
          scores[j] = problem_.template score<true>(q, begin + n + j, dots[j]);
        top = fmaxf(top, scores[j]);
      }
#pragma unroll
      for (int distance = LANES / 2; distance > 0; distance /= 2)
        top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, distance));
      const float base = top == -infinity() ? 0.0f : top;  // all weights are 0 if no position counts
      const float weights[2] = {weight_at(scores[0], base), weight_at(scores[1], base)};
      float sum = weights[0] + weights[1];
#pragma unroll
      for (int distance = LANES / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, distance);
      *reinterpret_cast<unsigned*>(weights_ + q * WEIGHT_STRIDE + n) = pack_two<Half>(weights[0], weights[1]);
      __syncwarp();  // so that all lanes have read row_max_
      if (n == 0) {
        shrinks_[q] = weight_at(old, base);
        row_sum_[q] = row_sum_[q] * shrinks_[q] + sum;
        row_max_[q] = top;
      }
    }
  }

  __device__ __forceinline__ void multiply_values(const Half* tile_rows) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const float low = shrinks_[16 * tile + lane_ / 4], high = shrinks_[16 * tile + 8 + lane_ / 4];
      if (__any_sync(WHOLE_WARP, low != 1.0f || high != 1.0f))
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
          sums_[tile][n][0] *= low, sums_[tile][n][1] *= low, sums_[tile][n][2] *= high, sums_[tile][n][3] *= high;
    }
#pragma unroll
    for (int n = 0; n < STEPS; ++n) {
      unsigned weight[TILES][4];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
        load_matrices(weight[tile], weights_ + (16 * tile + lane_ % 16) * WEIGHT_STRIDE + 16 * n + lane_ / 16 * 8);
#pragma unroll
      for (int step = 0; step < COLUMNS / 16; ++step) {
        unsigned b[2][2];
        load_value_fragments(b, tile_rows + 16 * n * stride_ + 16 * step, stride_);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          mma_16x8x16<Half>(sums_[tile][2 * step], weight[tile], b[0]);
          mma_16x8x16<Half>(sums_[tile][2 * step + 1], weight[tile], b[1]);
        }
      }
    }
  }

  const Problem& problem_;
  const int lane_, warp_, stride_, own_column_, column_;    // column_: the first column that this lane copies
  Half* const rows_;                                        // [2, POSITIONS, stride]
  float* const scores_;                                     // shares of the warps, [warps, QUERIES, POSITIONS]
  Half* const weights_;                                     // [QUERIES, WEIGHT_STRIDE]
  float *const row_max_, *const row_sum_, *const shrinks_;  // [QUERIES] each
  int2* const parts_;     // [TILES]: the first and the end of the warps in whose columns a tile's queries are not zero
  int* const rotations_;  // [D / 8], by rotation_of
  unsigned queries_[TILES][COLUMNS / 16][4];
  float sums_[TILES][COLUMNS / 8][4];
};

}  // namespace tightbeam::device
