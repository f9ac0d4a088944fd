// Parts of the attention kernels: softmax over parts, a beam's history, rows that stream through the lanes of a warp,
// and fragments of the tensor cores.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device.cuh"

namespace tightbeam::device {

// exp(score - row_max); 0 for a position that does not count, even if no position does.
__device__ __forceinline__ float weight_below(float score, float row_max) {
  return score == -infinity() ? 0.0f : expf(score - row_max);
}

// A scaled score, capped unless `softcap` is 0.
__device__ __forceinline__ float capped(float score, float softcap) {
  return softcap == 0.0f ? score : softcap * tanhf(score / softcap);
}

// A pack of a row of `columns` numbers, with zeros beyond them. `aligned` says that every pack is aligned and full.
template <class Float>
__device__ __forceinline__ Pack<Float> load_pack(const Float* row, int column, int columns, bool aligned) {
  Pack<Float> pack;
  if (aligned && column < columns) {
    pack = load_16(row + column);
  } else {
#pragma unroll
    for (int i = 0; i < Pack<Float>::size; ++i)
      pack.values[i] = !aligned && column + i < columns ? row[column + i] : from_float<Float>(0.0f);
  }
  return pack;
}

// The positions of a sample's history that count: begin..newest. `first` is the rotation tables' row for position 0.
struct Span {
  int begin, newest, first;
  bool valid;
};

// Finds a sample's span and checks its values in `lengths`, `ancestry` and `first_positions`. If one of them leads
// beyond a tensor, the sample is invalid, and none of its rows may be read or written. Called by a whole block.
template <class Arguments>
__device__ Span history_span(const Arguments& a, int sample) {
  const int length = a.lengths[sample];
  Span span = {};
  span.newest = length - 1;
  bool valid = length >= 1 && length <= a.T;
  if (valid) {
    span.begin = a.window > 0 && length > a.window ? length - a.window : 0;
    if (a.rotary > 0) {
      span.first = a.first_positions ? a.first_positions[sample] : 0;
      valid = span.first >= 0 && span.first <= a.rotary_positions - length;
    }
    if (a.distance_bias && span.newest - span.begin >= a.bias_distances) valid = false;
    const int* ancestry = a.ancestry + static_cast<long long>(sample) * a.M * a.T;
    for (int t = span.begin + threadIdx.x; t <= span.newest; t += blockDim.x)
#pragma unroll 4
      for (int beam = 0; beam < a.M; ++beam) {
        const int slot = ancestry[static_cast<long long>(beam) * a.T + t];
        if (slot < 0 || slot >= a.M) valid = false;
      }
  }
  span.valid = !__syncthreads_or(!valid);
  return span;
}

// The row whose cache has position `position` of a beam's history.
template <class Arguments>
__device__ __forceinline__ long long history_row(const Arguments& a, int sample, int beam, int position) {
  const long long first_row = static_cast<long long>(sample) * a.M;
  return first_row + a.ancestry[(first_row + beam) * a.T + position];
}

// The biases of a row by distance, or null.
template <class Arguments>
__device__ __forceinline__ const float* history_bias(const Arguments& a, long long row) {
  return a.distance_bias ? a.distance_bias + row * a.bias_row_stride : nullptr;
}

// A finished score. `bias` is the result of history_bias. PLAIN is for a kernel that runs only without a cap.
template <bool PLAIN, class Arguments>
__device__ __forceinline__ float history_score(const Arguments& a, const Span& span, const float* bias, int head,
                                               int position, float dot) {
  const float score = PLAIN ? a.scale * dot : capped(a.scale * dot, a.softcap);
  if (!bias) return score;
  return score + bias[static_cast<long long>(head) * a.bias_distances + span.newest - position];
}

// The number of a head at `column`, rotated by the angles of row `table_row`. `at(c)` returns the head's number c.
template <class Arguments, class At>
__device__ __forceinline__ float rotated(const Arguments& a, int table_row, int column, At at) {
  if (column >= a.rotary) return at(column);
  const int half = a.rotary / 2;
  const int angle = column < half ? column : column - half;
  const long long i = static_cast<long long>(table_row) * half + angle;
  if (column < half) return at(column) * a.cosines[i] - at(column + half) * a.sines[i];
  return at(column) * a.cosines[i] + at(column - half) * a.sines[i];
}

// The softmax of a query over some of its positions.
struct PartialSoftmax {
  float row_max, row_sum;

  __device__ float lse() const { return row_sum == 0.0f ? -infinity() : row_max + logf(row_sum); }
};

// Combines the results of several parts: part i has `softmax(i)` and the weighted sum `sum(i)` of one output number.
template <class Softmax, class Sum>
__device__ __forceinline__ float combine_parts(int parts, Softmax softmax, Sum sum, float* lse) {
  float row_max = -infinity();
  for (int i = 0; i < parts; ++i) row_max = fmaxf(row_max, softmax(i).row_max);
  float row_sum = 0.0f, value = 0.0f;
  for (int i = 0; i < parts; ++i) {
    const PartialSoftmax part = softmax(i);
    const float weight = weight_below(part.row_max, row_max);
    // A part without a position that counts may hold any number. A part of NaN scores has the row max -inf as well.
    if (weight == 0.0f && !isnan(part.row_sum)) continue;
    row_sum += weight * part.row_sum;
    value += weight * sum(i);
  }
  if (lse) *lse = PartialSoftmax{row_max, row_sum}.lse();
  return row_sum == 0.0f ? 0.0f : value / row_sum;
}

// Factors of `own`'s sum of weighted values and of the prefix's output. `prefix_lse` points to its lse; null: no
// prefix.
__device__ __forceinline__ float2 shares_beside_prefix(const PartialSoftmax& own, const float* prefix_lse) {
  float sum = own.row_sum, weight = 1.0f, prefix_weight = 0.0f;
  if (prefix_lse) {
    const float lse = *prefix_lse, top = fmaxf(own.row_max, lse), base = top == -infinity() ? 0.0f : top;
    weight = quick_exp(own.row_max - base), prefix_weight = quick_exp(lse - base);
    sum = weight * own.row_sum + prefix_weight;
  }
  const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  return make_float2(weight * factor, prefix_weight * factor);
}

// Attention of a few queries over rows that stream from global memory into registers, without a barrier. A row takes
// `lanes` lanes of a warp (a power of two), and each lane loads 16 bytes at a time. So a warp loads AHEAD times 32 /
// lanes rows at once. Each group of lanes has a softmax of its own until the end. A lane has CHUNKS packs of a value
// row: one if rows are aligned and narrow enough; more for any width and alignment, with one query.
template <class Float, int QUERIES, int CHUNKS, class Rows>
struct RowStream {
  static constexpr int SIZE = Pack<Float>::size;
  static constexpr bool ALIGNED = CHUNKS == 1;
  static constexpr int AHEAD = CHUNKS > 1 || Rows::has_rotation ? 1 : 2;

  PartialSoftmax softmax[QUERIES];
  float sums[QUERIES][CHUNKS * SIZE];  // of columns first_column + (chunk x lanes + lane) x SIZE ..

  // `rows` has:
  //   begin, end, K, V                         positions, and widths of keys and values
  //   look_up(t)                               needed before position t is read; negative if it does not count
  //   locate(t, found, &key, &value)           addresses of a position's rows
  //   score(q, t, dot)                         the finished score
  //   has_rotation, rotation(t, column, cosines, sines)  of four columns
  // `queries` is [QUERIES, K_padded] in shared memory, followed by as many numbers that the sines are multiplied by.
  __device__ void run(const Rows& rows, const float* queries, int K_padded, int lanes, int part, int parts,
                      int first_column) {
    const int lane = threadIdx.x % WARP % lanes, group = threadIdx.x % WARP / lanes, groups = WARP / lanes;
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) {
      softmax[q] = {-infinity(), 0.0f};
#pragma unroll
      for (int i = 0; i < CHUNKS * SIZE; ++i) sums[q][i] = 0.0f;
    }
    const int advance = parts * groups * AHEAD;
    const auto position = [&](int begin, int u) { return begin + (u * parts + part) * groups + group; };
    const auto look_up = [&](int t) { return t < rows.end ? rows.look_up(t) : -1; };
    int next[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) next[u] = look_up(position(rows.begin, u));

    for (int begin = rows.begin; begin < rows.end; begin += advance) {
      int t[AHEAD], found[AHEAD];
      bool any = false;
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        found[u] = next[u];
        next[u] = look_up(position(begin + advance, u));
        any = any || found[u] >= 0;
      }
      if (!__any_sync(WHOLE_WARP, any)) continue;

      const Float *keys[AHEAD], *values[AHEAD];
      Pack<Float> key[AHEAD], value[AHEAD][CHUNKS];
      const auto load_values = [&] {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u)
#pragma unroll
          for (int chunk = 0; chunk < CHUNKS; ++chunk)
            value[u][chunk] = load_pack(values[u], first_column + (chunk * lanes + lane) * SIZE, rows.V, ALIGNED);
      };
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        // For a position that does not count, another one is read and ignored, so that the loads need no branch.
        t[u] = found[u] < 0 ? rows.begin : position(begin, u);
        rows.locate(t[u], found[u] < 0 ? 0 : found[u], &keys[u], &values[u]);
      }
      constexpr bool BESIDE = CHUNKS == 1 && QUERIES == 1;  // loads values with the keys, if there are enough registers
      if (BESIDE) load_values();

      float dots[AHEAD][QUERIES] = {};
      for (int column = lane * SIZE; column < rows.K; column += lanes * SIZE) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) key[u] = load_pack(keys[u], column, rows.K, ALIGNED);
        multiply(rows, queries, K_padded, column, t, key, dots);
        if (CHUNKS == 1) break;  // one pack of each lane covers a whole key
      }
      if (!BESIDE) load_values();

#pragma unroll
      for (int q = 0; q < QUERIES; ++q) {
        float scores[AHEAD], row_max = softmax[q].row_max;
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
          float dot = dots[u][q];
#pragma unroll
          for (int distance = WARP / 2; distance > 0; distance /= 2)
            if (distance < lanes) dot += __shfl_xor_sync(WHOLE_WARP, dot, distance);
          scores[u] = found[u] < 0 ? -infinity() : rows.score(q, t[u], dot);
          row_max = fmaxf(row_max, scores[u]);
        }
        const float base = row_max == -infinity() ? 0.0f : row_max;  // so that the weight of -inf is 0
        const float shrink = expf(softmax[q].row_max - base);
        softmax[q].row_max = row_max;
        softmax[q].row_sum *= shrink;
#pragma unroll
        for (int i = 0; i < CHUNKS * SIZE; ++i) sums[q][i] *= shrink;
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
          const float weight = expf(scores[u] - base);
          softmax[q].row_sum += weight;
#pragma unroll
          for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int i = 0; i < SIZE; ++i) sums[q][chunk * SIZE + i] += weight * to_float(value[u][chunk].values[i]);
        }
      }
    }
  }

  // Adds the products of a pack of each key, from `column` on, to the queries' dots.
  __device__ __forceinline__ void multiply(const Rows& rows, const float* queries, int K_padded, int column,
                                           const int (&t)[AHEAD], const Pack<Float> (&key)[AHEAD],
                                           float (&dots)[AHEAD][QUERIES]) {
#pragma unroll
    for (int first = 0; first < SIZE; first += 4) {
      float cosines[AHEAD][4], sines[AHEAD][4];
      if constexpr (Rows::has_rotation)
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) rows.rotation(t[u], column + first, cosines[u], sines[u]);
#pragma unroll
      for (int q = 0; q < QUERIES; ++q) {
        const float* at = queries + q * K_padded + column + first;
        const Pack<float> query = load_16(at);
        Pack<float> other;
        if constexpr (Rows::has_rotation) other = load_16(at + QUERIES * K_padded);
#pragma unroll
        for (int u = 0; u < AHEAD; ++u)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float number = query.values[i];
            if constexpr (Rows::has_rotation) number = number * cosines[u][i] + other.values[i] * sines[u][i];
            dots[u][q] += number * to_float(key[u].values[first + i]);
          }
      }
    }
  }

  // Combines the warp's groups and writes [QUERIES] softmaxes and [QUERIES, columns] sums to shared memory.
  __device__ void store(PartialSoftmax* softmax_out, float* sums_out, int lanes) {
    const int lane = threadIdx.x % WARP, columns = lanes * CHUNKS * SIZE;
#pragma unroll
    for (int q = 0; q < QUERIES; ++q) {
      float row_max = softmax[q].row_max;
      for (int distance = lanes; distance < WARP; distance *= 2)
        row_max = fmaxf(row_max, __shfl_xor_sync(WHOLE_WARP, row_max, distance));
      const float shrink = weight_below(softmax[q].row_max, row_max);
      float row_sum = softmax[q].row_sum * shrink;
      for (int distance = lanes; distance < WARP; distance *= 2)
        row_sum += __shfl_xor_sync(WHOLE_WARP, row_sum, distance);
      if (lane == 0) softmax_out[q] = {row_max, row_sum};
#pragma unroll
      for (int i = 0; i < CHUNKS * SIZE; ++i) {
        float sum = sums[q][i] * shrink;
        for (int distance = lanes; distance < WARP; distance *= 2) sum += __shfl_xor_sync(WHOLE_WARP, sum, distance);
        if (lane < lanes) sums_out[q * columns + (i / SIZE * lanes + lane) * SIZE + i % SIZE] = sum;
      }
    }
  }
};

// Packs two numbers into one register of a matrix fragment.
template <class Half>
__device__ __forceinline__ unsigned pack_two(Half low, Half high) {
  unsigned short bits[2];
  memcpy(&bits[0], &low, 2);
  memcpy(&bits[1], &high, 2);
  return bits[0] | static_cast<unsigned>(bits[1]) << 16;
}
template <class Half>
__device__ __forceinline__ unsigned pack_two(float low, float high) {
  return pack_two(from_float<Half>(low), from_float<Half>(high));
}

// Two neighbours of a row of `columns` numbers, with zeros beyond them. `aligned` is as for load_pack; `column` is
// even.
template <class Half>
__device__ __forceinline__ unsigned load_two(const Half* row, int column, int columns, bool aligned) {
  if (aligned) return column < columns ? *reinterpret_cast<const unsigned*>(row + column) : 0;
  const Half zero = from_float<Half>(0.0f);
  return pack_two(column < columns ? row[column] : zero, column + 1 < columns ? row[column + 1] : zero);
}

// The low (0) or high (1) number of such a register.
template <class Half>
__device__ __forceinline__ float unpack(unsigned two, int which) {
  const unsigned short bits = static_cast<unsigned short>(two >> 16 * which);
  Half value;
  memcpy(&value, &bits, 2);
  return to_float(value);
}

// The b fragments of two neighbouring 8-column tiles, loaded from 16 rows of 16 numbers in shared memory, which begin
// at `corner` and are `stride` numbers apart. The rows are positions. As keys, they are b's columns; as values, they
// are b's rows. The two kinds have different addresses for the lanes, so that the two registers of a fragment are
// neighbours in both, as mma needs them; otherwise they would be moved first.
__device__ __forceinline__ int key_fragment_at(int lane, int stride) {
  return (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
}
__device__ __forceinline__ int value_fragment_at(int lane, int stride) { return lane % 16 * stride + lane / 16 * 8; }
// Loads from this lane's address: corner + key_fragment_at(lane, stride), or value_fragment_at.
template <class Address>
__device__ __forceinline__ void load_key_fragments(unsigned (&b)[2][2], Address address) {
  unsigned fragments[4];
  load_matrices(fragments, address);
  b[0][0] = fragments[0], b[0][1] = fragments[1], b[1][0] = fragments[2], b[1][1] = fragments[3];
}
template <class Address>
__device__ __forceinline__ void load_value_fragments(unsigned (&b)[2][2], Address address) {
  unsigned fragments[4];
  load_matrices_transposed(fragments, address);
  b[0][0] = fragments[0], b[0][1] = fragments[1], b[1][0] = fragments[2], b[1][1] = fragments[3];
}
template <class Half>
__device__ __forceinline__ void load_key_fragments(unsigned (&b)[2][2], const Half* corner, int stride) {
  load_key_fragments(b, corner + key_fragment_at(threadIdx.x % WARP, stride));
}
template <class Half>
__device__ __forceinline__ void load_value_fragments(unsigned (&b)[2][2], const Half* corner, int stride) {
  load_value_fragments(b, corner + value_fragment_at(threadIdx.x % WARP, stride));
}

// Writes a number of the result; with several splits, to the workspace.
template <class Float>
__device__ __forceinline__ void put(const SplitResult<Float>& result, int split, long long row, long long column,
                                    float value) {
  if (result.splits == 1)
    result.output[row * result.width + column] = from_float<Float>(value);
  else
    result.workspace[(split * result.rows + row) * result.width + column] = value;
}
// Writes 8 numbers, each a sum times `factor`. Rows and pointers are aligned to 16 bytes.
template <class Half>
__device__ __forceinline__ void put_pack(const SplitResult<Half>& result, int split, long long row, int column,
                                         const float* sums, float factor) {
  if (result.splits == 1) {
    Pack<Half> pack;
#pragma unroll
    for (int i = 0; i < 8; ++i) pack.values[i] = from_float<Half>(sums[i] * factor);
    store_16(result.output + row * result.width + column, pack);
  } else {
    float* to = result.workspace + (split * result.rows + row) * result.width + column;
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      Pack<float> pack = load_16(sums + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) pack.values[j] *= factor;
      store_16(to + i, pack);
    }
  }
}
template <class Float>
__device__ __forceinline__ void put_lse(const SplitResult<Float>& result, int split, long long row, float value) {
  if (result.splits > 1)
    result.workspace[result.splits * result.rows * result.width + split * result.rows + row] = value;
  else if (result.lse)
    result.lse[row] = value;
}

// Combines the splits. Grid: one block for each row.
template <class Float>
__global__ void __launch_bounds__(128) combine_splits_kernel(SplitResult<Float> result) {
  const long long row = blockIdx.x, rows = result.rows, width = result.width;
  const int splits = result.splits;
  const float *outputs = result.workspace, *lses = outputs + splits * rows * width;
  const auto softmax = [&](int split) { return PartialSoftmax{lses[split * rows + row], 1.0f}; };
  for (int column = threadIdx.x; column < width; column += blockDim.x) {
    const auto sum = [&](int split) { return outputs[(split * rows + row) * width + column]; };
    result.output[row * width + column] = from_float<Float>(combine_parts(splits, softmax, sum, nullptr));
  }
  if (result.lse && threadIdx.x == 0) combine_parts(splits, softmax, [](int) { return 0.0f; }, result.lse + row);
}

}  // namespace tightbeam::device
