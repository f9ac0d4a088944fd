// Attention whose rows are key and value at once, shared by latent_attention and beam_latent_attention.
//
// A `Problem` gives queries and rows. Its queries are as wide as a row, D = G K numbers, and zero outside their own
// head, so that one matrix product serves every form; fragments that are all zero are left out.
//   queries, begin, end, D, aligned     of this block; `aligned`: K is whole packs, and so are the pointers
//   first_group(j), K                   columns of query j's numbers: K from first_group(j) K on
//   query(j, column), number(n, column) float; pack(n, column): address of 16 bytes of row n
//   key(n, column)                      a row's number for the scores: rotated where there is rotation
//   load_keys(b, corner, stride, n, column)  load_key_fragments, rotated where there is rotation
//   counts(n), score(j, n, dot)         true for a position that counts, and its score
//   put(j, column, softmax, sum)        takes a result
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_plan.h"

namespace tightbeam::device {

// Rotates fragments of load_key_fragments by 8 columns: their partners are half a rotation away in the same row.
// `column`: of the row, at `corner`; `table_row(i)`: row of the rotation tables for position i of the fragments' 16.
template <class Half, class Arguments, class TableRow>
__device__ __forceinline__ void turn_key_fragments(unsigned (&b)[2][2], const Half* corner, int stride,
                                                   const Arguments& a, int column, TableRow table_row) {
  const int lane = threadIdx.x % WARP, half = a.rotary / 2, D = a.G * a.K;
  // Distance from 8 columns to their partners; 0 for those that are not rotated.
  const auto away = [&](int c) { return c % a.K >= a.rotary || c >= D ? 0 : c % a.K < half ? half : -half; };
  unsigned partners[4];
  load_matrices(partners,
                corner + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8 + away(column + lane / 8 % 2 * 8));
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // positions 8 (i / 2) + lane / 4, columns from 8 (i % 2) on
    const int first = column + i % 2 * 8, distance = away(first);
    if (distance == 0) continue;
    const int angle = first % a.K - (distance < 0 ? half : 0) + lane % 4 * 2;
    const long long table = static_cast<long long>(table_row(i / 2 * 8 + lane / 4)) * half + angle;
    unsigned& own = b[i / 2][i % 2];
    float numbers[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float sine = distance > 0 ? -a.sines[table + j] : a.sines[table + j];
      numbers[j] = unpack<Half>(own, j) * a.cosines[table + j] + unpack<Half>(partners[i], j) * sine;
    }
    own = pack_two<Half>(numbers[0], numbers[1]);
  }
}

// Without tensor cores, for float32, any width and any alignment. A block forms SIMT_COLUMNS columns of 16 queries:
// scores from chunks of 64 numbers in shared memory, sums in registers, rows read again for them (from L1 or L2).
template <class Problem>
__device__ __forceinline__ void attend_simt(const Problem& problem, int first_column) {
  constexpr int COLUMNS = SIMT_COLUMNS / SIMT_THREADS;
  float* queries = shared_memory<float>();                   // [SIMT_QUERIES, SIMT_STRIDE]
  float* keys = queries + SIMT_QUERIES * SIMT_STRIDE;        // [SIMT_POSITIONS, SIMT_STRIDE]
  float* weights = keys + SIMT_POSITIONS * SIMT_STRIDE;      // [SIMT_POSITIONS, SIMT_QUERIES]
  float* shrinks = weights + SIMT_POSITIONS * SIMT_QUERIES;  // [SIMT_QUERIES]
  const int thread = threadIdx.x, q = thread / 16;           // of the scores; positions thread % 16 and that + 16
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
        scores[half] = problem.score(q, begin + n, dots[half]);
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
#pragma unroll
  for (int i = 0; i < SIMT_QUERIES; ++i)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const int column = first_column + c * SIMT_THREADS + thread;
      if (i < problem.queries && column < problem.D)
        problem.put(i, column, PartialSoftmax{weights[i], weights[SIMT_QUERIES + i]}, sums[c][i]);
    }
}

// With tensor cores. A warp owns COLUMNS columns of the rows: of the scores it forms their share, which the block adds
// up in shared memory, and of the output their sums, in the registers of the matrix fragments. So a row comes once into
// shared memory and serves both products. A block has 16 TILES queries and 16 STEPS positions at a time.
//
// For 64 queries (4 beams, 16 heads) and D = 1024 in float16 on an H200 (4.8 TB/s; mma.sync at most about 600 TFLOP/s):
// a position is 2 KB and 2 x 2 x 64 x 1024 operations, 128 a byte, so 4.8 TB/s would ask for 614 TFLOP/s: bytes and
// operations weigh the same. With TILES = 2 each row comes in for 2 blocks, the second time from L2. For each tile of
// 32 positions (64 KB) a block passes 64 KB in, 2 x 64 KB out and 2 x 64 KB of score shares through shared memory, 5 x
// 64 KB or 2,560 cycles at 128 bytes each, against 1,600 cycles of mma.sync and 1,580 of the block's part of the device
// memory's rate: shared memory is the limit, and 0.6 of the bytes' time the most that can be had; expect 0.4 to 0.5
// with the three barriers of a tile. Registers: 64 sums and 32 of queries a thread for TILES = 2, 512 threads.
template <class Half, int TILES, int STEPS, int COLUMNS, class Problem>
__device__ __forceinline__ void attend_tensor_core(const Problem& problem, const TensorCoreShape& shape) {
  constexpr int QUERIES = 16 * TILES, POSITIONS = 16 * STEPS, WEIGHT_STRIDE = POSITIONS + 8;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const int D = problem.D, own_column = warp * COLUMNS, stride = shape.stride;
  Half* rows = shared_memory<Half>();                                // [2, POSITIONS, stride]
  float* scores = shared_memory<float>(shape.scores_at);             // [warps, QUERIES, POSITIONS]
  Half* weights = shared_memory<Half>(shape.weights_at);             // [QUERIES, WEIGHT_STRIDE]
  float* row_max = shared_memory<float>(shape.state_at);             // [QUERIES]
  float *row_sum = row_max + QUERIES, *shrinks = row_sum + QUERIES;  // [QUERIES] each
  // Index of a score's share: the columns of a row are permuted so that a warp's stores meet all banks.
  const auto share = [](int q, int n) {
    return q * POSITIONS + (STEPS == 1 ? n ^ ((q & 2) << 2) : n ^ ((q & 3) << 3));
  };
  for (int i = threadIdx.x; i < QUERIES; i += blockDim.x) row_max[i] = -infinity(), row_sum[i] = 0.0f;

  // The columns in which a tile's queries are not zero, [from, to), and this warp's fragments of them.
  int from[TILES], to[TILES];
  unsigned query[TILES][COLUMNS / 16][4];
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
    const int last = min(16 * tile + 15, problem.queries - 1);
    from[tile] = to[tile] = 0;
    if (last >= 16 * tile) {
      from[tile] = problem.first_group(16 * tile) * problem.K;
      to[tile] = (problem.first_group(last) + 1) * problem.K;
    }
#pragma unroll
    for (int step = 0; step < COLUMNS / 16; ++step)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int q = 16 * tile + lane / 4 + r % 2 * 8, column = own_column + 16 * step + lane % 4 * 2 + r / 2 * 8;
        const auto at = [&](int c) { return q < problem.queries && c < D ? problem.query(q, c) : 0.0f; };
        query[tile][step][r] = pack_two<Half>(at(column), at(column + 1));
      }
  }
  const auto takes_part = [&](int tile, int begin, int end) { return begin < to[tile] && end > from[tile]; };

  // Starts a tile of positions on its way. Bit n of the result: whether position n counts; if none does, it is not
  // read.
  const auto load = [&](int begin, int stage) {
    const bool counts = lane < POSITIONS && begin + lane < problem.end && problem.counts(begin + lane);
    const unsigned votes = __ballot_sync(WHOLE_WARP, counts);
    if (votes) {
      const int packs = shape.D_padded / 8;
      for (int i = threadIdx.x; i < POSITIONS * packs; i += blockDim.x) {
        const int n = i / packs, column = i % packs * 8;
        Half* to_shared = rows + (stage * POSITIONS + n) * stride + column;
        if (problem.aligned && (votes >> n & 1) && column < D) {
          copy_async_16(to_shared, problem.pack(begin + n, column));
        } else {
          Pack<Half> pack;
          for (int j = 0; j < 8; ++j)
            pack.values[j] =
                from_float<Half>((votes >> n & 1) && column + j < D ? problem.number(begin + n, column + j) : 0.0f);
          store_16(to_shared, pack);
        }
      }
    }
    copy_async_commit();
    return votes;
  };

  float sums[TILES][COLUMNS / 8][4] = {};
  unsigned next_counts = load(problem.begin, 0);
  int stage = 0;
  for (int begin = problem.begin; begin < problem.end; begin += POSITIONS, stage ^= 1) {
    const unsigned counts = next_counts;
    copy_async_wait<0>();
    __syncthreads();  // this tile has arrived, and the one before it is free
    next_counts = load(begin + POSITIONS, stage ^ 1);
    if (!counts) continue;
    const Half* tile_rows = rows + stage * POSITIONS * stride + own_column;

#pragma unroll
    for (int n = 0; n < STEPS; ++n) {
      float shares[TILES][2][4] = {};
#pragma unroll
      for (int step = 0; step < COLUMNS / 16; ++step) {
        const int column = own_column + 16 * step;
        bool needed = false;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) needed = needed || takes_part(tile, column, column + 16);
        if (!needed) continue;
        unsigned b[2][2];
        problem.load_keys(b, tile_rows + 16 * n * stride + 16 * step, stride, begin + 16 * n, column);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          mma_16x8x16<Half>(shares[tile][0], query[tile][step], b[0]);
          mma_16x8x16<Half>(shares[tile][1], query[tile][step], b[1]);
        }
      }
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
        if (takes_part(tile, own_column, own_column + COLUMNS))
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int q = 16 * tile + i / 2 * 8 + lane / 4, position = 16 * n + i % 2 * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(scores + warp * QUERIES * POSITIONS + share(q, position)) =
                make_float2(shares[tile][i % 2][i / 2 * 2], shares[tile][i % 2][i / 2 * 2 + 1]);
          }
    }
    __syncthreads();

    // The lanes of a query's positions are neighbours: 16 or 32 of them.
    for (int i = threadIdx.x; i < QUERIES * POSITIONS; i += blockDim.x) {
      const int q = i / POSITIONS, n = i % POSITIONS, tile = q / 16;
      float dot = 0.0f;
#pragma unroll
      for (int t = 0; t < TILES; ++t)
        if (t == tile && to[t] > from[t])
          for (int w = from[t] / COLUMNS; w <= (to[t] - 1) / COLUMNS; ++w)
            dot += scores[w * QUERIES * POSITIONS + share(q, n)];
      float score = -infinity();
      if (q < problem.queries && (counts >> n & 1)) score = problem.score(q, begin + n, dot);
      const float old = row_max[q];
      float top = score;
#pragma unroll
      for (int distance = POSITIONS / 2; distance > 0; distance /= 2)
        top = fmaxf(top, __shfl_xor_sync(WHOLE_WARP, top, distance));
      top = fmaxf(top, old);
      const float weight = weight_below(score, top);
      float sum = weight;
#pragma unroll
      for (int distance = POSITIONS / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, distance);
      weights[q * WEIGHT_STRIDE + n] = from_float<Half>(weight);
      if (n == 0) {
        shrinks[q] = weight_below(old, top);
        row_sum[q] = row_sum[q] * shrinks[q] + sum;
        row_max[q] = top;
      }
    }
    __syncthreads();

#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const float low = shrinks[16 * tile + lane / 4], high = shrinks[16 * tile + 8 + lane / 4];
      if (__any_sync(WHOLE_WARP, low != 1.0f || high != 1.0f))
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; ++n)
          sums[tile][n][0] *= low, sums[tile][n][1] *= low, sums[tile][n][2] *= high, sums[tile][n][3] *= high;
    }
#pragma unroll
    for (int n = 0; n < STEPS; ++n) {
      unsigned weight[TILES][4];
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int q = 16 * tile + lane / 4 + r % 2 * 8;
          memcpy(&weight[tile][r], weights + q * WEIGHT_STRIDE + 16 * n + lane % 4 * 2 + r / 2 * 8, 4);
        }
#pragma unroll
      for (int step = 0; step < COLUMNS / 16; ++step) {
        if (own_column + 16 * step >= D) continue;
        unsigned b[2][2];
        load_value_fragments(b, tile_rows + 16 * n * stride + 16 * step, stride);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
          mma_16x8x16<Half>(sums[tile][2 * step], weight[tile], b[0]);
          mma_16x8x16<Half>(sums[tile][2 * step + 1], weight[tile], b[1]);
        }
      }
    }
  }
  copy_async_wait<0>();
  __syncthreads();

#pragma unroll
  for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = 16 * tile + i / 2 * 8 + lane / 4;
      const PartialSoftmax softmax = {row_max[q], row_sum[q]};
#pragma unroll
      for (int n = 0; n < COLUMNS / 8; ++n) {
        const int column = own_column + 8 * n + lane % 4 * 2 + i % 2;
        if (q < problem.queries && column < D) problem.put(q, column, softmax, sums[tile][n][i]);
      }
    }
}

}  // namespace tightbeam::device
