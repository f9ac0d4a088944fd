// The work of a warp of beam_attention_tensor_core_kernel: 8 or 16 queries of a sample's beams at one key/value head.
// It goes once over each row that is in one of their histories (history_rows.cuh), in tiles of 16 rows. A tile is
// multiplied with all queries; a beam's score of a row outside its own history is -inf.
#pragma once

#include "kernels/cuda/history_rows.cuh"
#include "kernels/cuda/rotation.cuh"
#include "ops/beam_attention/arguments.h"

namespace tightbeam::device {

// 8 HALVES queries of one warp, which has two tiles of rows in shared memory at a time. If a GPU gets few heads,
// several warps share the tiles of one.
template <class Half, int HALVES, int WIDTH, bool ROTATED>
class BeamTiles {
 public:
  static constexpr int QUERIES = 8 * HALVES, STRIDE = WIDTH + 8, STEPS = WIDTH / 16;
  static constexpr int PACKS = WIDTH / 8, ROWS = WARP / PACKS;  // packs of a row; rows that a warp copies at once
  static constexpr unsigned ROW_BYTES = STRIDE * 2, VALUES_AT = 16 * ROW_BYTES, STAGE_BYTES = 2 * VALUES_AT;

  __device__ __forceinline__ BeamTiles(const BeamAttentionArguments<Half>& a, const BeamTilesPlan& plan, int warp)
      : a_(a),
        inverse_(plan.Q_inverse),
        g_(blockIdx.x * plan.heads + warp * plan.heads / BEAM_TILES_WARPS),
        part_(warp & (plan.parts - 1)),
        parts_(plan.parts),
        first_query_(blockIdx.y * QUERIES),
        Q_(plan.Q),
        queries_(g_ < a.G ? min(QUERIES, a.M * Q_ - first_query_) : 0),
        lane_(threadIdx.x % WARP),
        column_(lane_ % PACKS * 8),
        first_row_(static_cast<long long>(blockIdx.z) * a.M),
        width_(a.H * a.K + a.G * (a.K + a.V)),
        stages_(shared_memory<Half>(warp * 2 * STAGE_BYTES)) {
    new_key_ = a.projected + first_row_ * width_ + (a.H + g_) * a.K + column_;
    new_value_ = a.projected + first_row_ * width_ + (a.H + a.G) * a.K + g_ * a.V + column_;
    const long long first = (first_row_ * a.G + g_) * a.T_max;
    key_ = a.key_cache + first * a.K + column_, value_ = a.value_cache + first * a.V + column_;
#pragma unroll
    for (int half = 0; half < HALVES; ++half) row_max_[half] = -infinity(), row_sum_[half] = 0.0f;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[n][i] = 0.0f;
  }

  // Query j's beam, head, and index among the sample's [M, H].
  __device__ __forceinline__ int beam(int j) const {
    return static_cast<int>(static_cast<unsigned>(first_query_ + j) * inverse_ >> 24);
  }
  __device__ __forceinline__ int head(int j) const { return g_ * Q_ + first_query_ + j - beam(j) * Q_; }
  __device__ __forceinline__ int place(int j) const { return beam(j) * a_.H + head(j); }
  __device__ int first_beam() const { return beam(0); }
  __device__ int end_beam() const { return min(beam(QUERIES - 1) + 1, a_.M); }

  // Starts the copy of the queries to the second stage.
  __device__ __forceinline__ void copy_queries() const {
#pragma unroll
    for (int row = 0; row < QUERIES; row += ROWS) {
      const int j = row + lane_ / PACKS;
      const bool own = j < queries_ && column_ < a_.K;
      const Half* from = a_.projected + first_row_ * width_ + (own ? beam(j) * width_ + head(j) * a_.K + column_ : 0);
      copy_async_16_or_zeros(shared_address(stages_ + (32 + j) * STRIDE + column_), from, own);
    }
    copy_async_commit();
  }

  // Writes NaN for these queries, if their sample is invalid.
  __device__ __forceinline__ void put_nan() const {
    copy_async_wait<0>();
    for (int j = 0; j < queries_ && part_ == 0; ++j)
      for (int column = lane_; column < a_.V; column += WARP)
        a_.output[(first_row_ * a_.H + place(j)) * a_.V + column] = from_float<Half>(not_a_number());
  }

  // Writes the newest rows of this head into the caches, once.
  __device__ __forceinline__ void write_newest(const Span& span) const {
    if (queries_ == 0 || part_ > 0 || blockIdx.y > 0) return;
    for (int m = lane_ / PACKS; m < a_.M; m += ROWS) {
      const long long position = static_cast<long long>(m * a_.G) * a_.T_max + span.newest;
      if (column_ < a_.K)
        store_16(const_cast<Half*>(key_) + position * a_.K, load_16(new_key_ + static_cast<long long>(m) * width_));
      if (column_ < a_.V)
        store_16(const_cast<Half*>(value_) + position * a_.V, load_16(new_value_ + static_cast<long long>(m) * width_));
    }
  }

  __device__ __forceinline__ void take_queries(const Span& span) {
    copy_async_wait<0>();
    __syncwarp();
    Half* staged = stages_ + 32 * STRIDE;
    if constexpr (ROTATED) {
      if (lane_ % 16 < QUERIES) rotate_rows(staged, STRIDE, a_, span.first + span.newest);
      __syncwarp();
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      load_matrices(query_[step], staged + lane_ % 16 * STRIDE + lane_ / 16 * 8 + 16 * step);
      if (HALVES == 1) query_[step][1] = query_[step][3] = 0;
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      const int j = 8 * half + lane_ / 4;
      beam_bit_[half] = j < queries_ ? 1u << (beam(j) - first_beam()) : 0;
      bias_[half] = span.newest;  // of no query: within the first row, since multiply() reads it for all of them
      if (a_.distance_bias && j < queries_)
        bias_[half] = (first_row_ + beam(j)) * a_.bias_row_stride + head(j) * a_.bias_distances + span.newest;
    }
  }

  // Goes through this warp's share of the tiles: every `parts_`-th one.
  __device__ __forceinline__ void run(const HistoryRows& rows, const Span& span) {
    if (queries_ == 0) return;
    const SharedAddress to = shared_address(stages_ + lane_ / PACKS * STRIDE + column_);
    const SharedAddress key_fragments = shared_address(stages_ + key_fragment_at(lane_, STRIDE));
    const SharedAddress value_fragments = shared_address(stages_ + value_fragment_at(lane_, STRIDE)) + VALUES_AT;
    const auto load = [&](int tile, unsigned stage) {
      if (tile < rows.tiles) {
        const bool newest = tile >= rows.newest;
        const char* key = reinterpret_cast<const char*>(newest ? new_key_ : key_);
        const char* value = reinterpret_cast<const char*>(newest ? new_value_ : value_);
        const int key_bytes = 2 * (newest ? width_ : a_.K), value_bytes = 2 * (newest ? width_ : a_.V);
        const int* places = rows.places + tile * 16 + lane_ / PACKS;
#pragma unroll
        for (int row = 0; row < 16; row += ROWS) {
          const long long place = places[row];
          copy_async_16_or_zeros(to + stage + row * ROW_BYTES, key + place * key_bytes, place >= 0 && column_ < a_.K);
          copy_async_16_or_zeros(to + stage + VALUES_AT + row * ROW_BYTES, value + place * value_bytes,
                                 place >= 0 && column_ < a_.V);
        }
      }
      copy_async_commit();
    };
    unsigned stage = 0;
    load(part_, stage);
    for (int tile = part_; tile < rows.tiles; tile += parts_, stage ^= STAGE_BYTES) {
      load(tile + parts_, stage ^ STAGE_BYTES);
      copy_async_wait<1>();
      __syncwarp();
      if constexpr (ROTATED) {
        rotate_rows(stages_ + stage / 2, STRIDE, a_, span.first + rows.positions[tile * 16 + lane_ % 16]);
        __syncwarp();
      }
      multiply(rows, tile * 16 + lane_ % 4 * 2, key_fragments + stage, value_fragments + stage);
      __syncwarp();  // the stage is free again
    }
  }

  // Combines this warp's softmax and sums with those of the next `parts` - 1 warps. Called by the whole block.
  __device__ __forceinline__ void combine() {
    float* own = reinterpret_cast<float*>(stages_) + lane_;
    if (part_ > 0) {
#pragma unroll
      for (int half = 0; half < HALVES; ++half) {
        own[2 * half * WARP] = row_max_[half], own[(2 * half + 1) * WARP] = row_sum_[half];
#pragma unroll
        for (int n = 0; n < WIDTH / 4; ++n)
          own[(2 * HALVES + half * (WIDTH / 4) + n) * WARP] = sums_[n / 2][2 * half + n % 2];
      }
    }
    __syncthreads();
    if (part_ > 0) return;
#pragma unroll 1
    for (int i = 1; i < parts_; ++i) {
      const float* other = own + i * (2 * STAGE_BYTES / 4);
#pragma unroll
      for (int half = 0; half < HALVES; ++half) {
        const float other_max = other[2 * half * WARP], top = fmaxf(row_max_[half], other_max);
        const float base = top == -infinity() ? 0.0f : top;
        const float mine = quick_exp(row_max_[half] - base), theirs = quick_exp(other_max - base);
        row_max_[half] = top;
        row_sum_[half] = row_sum_[half] * mine + other[(2 * half + 1) * WARP] * theirs;
#pragma unroll
        for (int n = 0; n < WIDTH / 4; ++n) {
          float& sum = sums_[n / 2][2 * half + n % 2];
          sum = sum * mine + other[(2 * HALVES + half * (WIDTH / 4) + n) * WARP] * theirs;
        }
      }
    }
  }

  // Writes the outputs, merged with the prefix's.
  __device__ __forceinline__ void put() {
    if (part_ > 0) return;
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      row_sum_[half] += __shfl_xor_sync(WHOLE_WARP, row_sum_[half], 1);
      row_sum_[half] += __shfl_xor_sync(WHOLE_WARP, row_sum_[half], 2);
      const int j = 8 * half + lane_ / 4;
      if (j >= queries_) continue;
      const long long row = first_row_ * a_.H + place(j), at = row * a_.V + lane_ % 4 * 2;
      const float2 share =
          shares_beside_prefix({row_max_[half], row_sum_[half]}, a_.prefix_lse ? a_.prefix_lse + row : nullptr);
#pragma unroll
      for (int n = 0; n < WIDTH / 8; ++n) {
        if (8 * n >= a_.V) continue;
        float low = sums_[n][2 * half] * share.x, high = sums_[n][2 * half + 1] * share.x;
        if (share.y != 0.0f) {
          const unsigned prefix = *reinterpret_cast<const unsigned*>(a_.prefix_output + at + 8 * n);
          low += share.y * unpack<Half>(prefix, 0), high += share.y * unpack<Half>(prefix, 1);
        }
        *reinterpret_cast<unsigned*>(a_.output + at + 8 * n) = pack_two<Half>(low, high);
      }
    }
  }

 private:
  // Computes both products of a tile. This lane has the scores of rows first, first + 1, first + 8 and first + 9; its
  // fragments begin at `keys` and `values`.
  __device__ __forceinline__ void multiply(const HistoryRows& rows, int first, SharedAddress keys,
                                           SharedAddress values) {
    float scores[2][4] = {};
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      unsigned b[2][2];
      load_key_fragments(b, keys + step * 32);
      mma_16x8x16<Half>(scores[0], query_[step], b[0]);
      mma_16x8x16<Half>(scores[1], query_[step], b[1]);
    }
    unsigned weights[4] = {};
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
      float row[4], top = row_max_[half];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 beams = *reinterpret_cast<const uint2*>(rows.beams + first + 8 * i);
        float low = a_.scale * scores[i][half * 2], high = a_.scale * scores[i][half * 2 + 1];
        if (a_.distance_bias) {
          const int2 t = *reinterpret_cast<const int2*>(rows.positions + first + 8 * i);
          low += a_.distance_bias[bias_[half] - t.x], high += a_.distance_bias[bias_[half] - t.y];
        }
        row[2 * i] = beams.x & beam_bit_[half] ? low : -infinity();
        row[2 * i + 1] = beams.y & beam_bit_[half] ? high : -infinity();
        top = fmaxf(top, fmaxf(row[2 * i], row[2 * i + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, 1));
      top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, 2));
      const float base = top == -infinity() ? 0.0f : top;  // so that the weight of -inf is 0
      const float shrink = quick_exp(row_max_[half] - base);
      row_max_[half] = top;
      row_sum_[half] *= shrink;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        row[i] = quick_exp(row[i] - base);
        row_sum_[half] += row[i];
      }
      weights[half] = pack_two<Half>(row[0], row[1]);
      weights[half + 2] = pack_two<Half>(row[2], row[3]);
#pragma unroll
      for (int n = 0; n < WIDTH / 8; ++n) sums_[n][half * 2] *= shrink, sums_[n][half * 2 + 1] *= shrink;
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      unsigned b[2][2];
      load_value_fragments(b, values + step * 32);
      mma_16x8x16<Half>(sums_[step * 2], weights, b[0]);
      mma_16x8x16<Half>(sums_[step * 2 + 1], weights, b[1]);
    }
  }

  const BeamAttentionArguments<Half>& a_;
  const unsigned inverse_;
  const int g_, part_, parts_, first_query_, Q_, queries_, lane_,
      column_;                                        // column_: the first column that this lane copies
  const long long first_row_;                         // first row of the sample
  const int width_;                                   // width of a row of `projected`
  Half* const stages_;                                // [2 stages, keys and values, 16, STRIDE]
  const Half *new_key_, *new_value_, *key_, *value_;  // column_ of the sample's first row in the inputs and the caches
  unsigned query_[STEPS][4], beam_bit_[HALVES];
  long long bias_[HALVES];  // index of the newest position's bias
  float row_max_[HALVES], row_sum_[HALVES], sums_[WIDTH / 8][4];
};

}  // namespace tightbeam::device
