// Compiled once for each instruction set, like math_kernels.cpp, and under the same rule: nothing here may have
// external linkage but the table.
//
// A tile of queries goes over the keys block by block (FlashAttention-2, algorithm 1): scores, their exponentials
// against the greatest score so far, and the weighted sum of the values. In both products, ROWS x VECTORS registers
// hold sums; the keys are packed in tiles of columns, so that no sum runs across a register. The numbers of a query are
// calculated in the same order whatever other queries there are.
#include "kernels/cpu/attention/encoder_attention.h"
#include "kernels/cpu/vectors.h"

namespace tightbeam {
namespace {

constexpr int ROWS = 6, VECTORS = LANES == 16 ? 4 : 2;
constexpr int TILE = VECTORS * LANES;  // keys that lie side by side
constexpr int QUERIES = 48;            // of a tile, a multiple of ROWS
constexpr int BLOCK = 512;             // keys, a multiple of TILE
constexpr int STRETCH = 64;            // keys whose values stay in the first cache
constexpr float NOTHING = -__builtin_inff();

inline int smaller(int a, int b) { return a < b ? a : b; }
inline long padded(long count, long multiple) { return (count + multiple - 1) / multiple * multiple; }
inline void fetch(const float* numbers, int count) {
  for (int i = 0; i < count; i += 16) __builtin_prefetch(numbers + i, 0, 3);
}

long keys_size(int count, int K) { return padded(count, TILE) * K; }
long values_size(int count, int V) { return count * padded(V, LANES); }
long workspace_size(int K, int V) { return QUERIES * (long{K} + BLOCK + padded(V, LANES) + BLOCK) + 3 * QUERIES; }

// keys: [tiles, K, TILE]; values: [count, V padded to whole registers].
void pack(const EncoderHead& h, float* keys, float* values) {
  const int whole = h.K / 4 * 4;
  typedef float Four __attribute__((vector_size(16)));
  constexpr int AHEAD = 12;
  for (int t = 0; t < h.count; t += 4) {
    float* tile = keys + t / TILE * static_cast<long>(TILE) * h.K + t % TILE;
    const float* rows[4];
    for (int i = 0; i < 4; ++i) {
      rows[i] = h.key + h.positions[smaller(t + i, h.count - 1)] * h.stride;
      const float* next = h.key + h.positions[smaller(t + i + AHEAD, h.count - 1)] * h.stride;
      fetch(next, h.K);
    }
    for (int k = 0; k < whole; k += 4) {
      Four a, b, c, d;
      __builtin_memcpy(&a, rows[0] + k, sizeof a);
      __builtin_memcpy(&b, rows[1] + k, sizeof b);
      __builtin_memcpy(&c, rows[2] + k, sizeof c);
      __builtin_memcpy(&d, rows[3] + k, sizeof d);
      const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                 AB = __builtin_shufflevector(a, b, 2, 6, 3, 7), CD = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      const Four columns[4] = {__builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
                               __builtin_shufflevector(AB, CD, 0, 1, 4, 5),
                               __builtin_shufflevector(AB, CD, 2, 3, 6, 7)};
      for (int i = 0; i < 4; ++i) __builtin_memcpy(tile + (k + i) * TILE, &columns[i], sizeof columns[i]);
    }
    for (int k = whole; k < h.K; ++k)
      for (int i = 0; i < 4; ++i) tile[k * TILE + i] = rows[i][k];
  }
  const long width = padded(h.V, LANES);
  for (int t = 0; t < h.count; ++t) {
    const float* from = h.value + h.positions[t] * h.value_stride;
    const float* next = h.value + h.positions[smaller(t + AHEAD, h.count - 1)] * h.value_stride;
    fetch(next, h.V);
    for (int v = 0; v < h.V; v += LANES)
      store(values + t * width + v, v + LANES <= h.V ? load(from + v) : load_some(from + v, h.V - v));
  }
}

// Scores of ROWS queries [ROWS, K] for COUNT x LANES keys of a tile [K, TILE].
template <int COUNT>
inline void score(const float* queries, int K, const float* keys, float* scores, const float* const* bias) {
  Vector sums[ROWS][COUNT] = {};
  for (int k = 0; k < K; ++k) {
    Vector key[COUNT];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) key[i] = load(keys + k * TILE + i * LANES);
    TIGHTBEAM_UNROLL
    for (int q = 0; q < ROWS; ++q) {
      const Vector query = broadcast(queries[q * long{K} + k]);
      TIGHTBEAM_UNROLL
      for (int i = 0; i < COUNT; ++i) sums[q][i] += query * key[i];
    }
  }
  TIGHTBEAM_UNROLL
  for (int q = 0; q < ROWS; ++q) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i)
      store(scores + q * BLOCK + i * LANES, bias ? sums[q][i] + load(bias[q] + i * LANES) : sums[q][i]);
  }
}

void score_some(int vectors, const float* queries, int K, const float* keys, float* scores, const float* const* bias) {
  switch (vectors) {
    case 1: return score<1>(queries, K, keys, scores, bias);
#if TIGHTBEAM_LANES == 16
    case 2: return score<2>(queries, K, keys, scores, bias);
    case 3: return score<3>(queries, K, keys, scores, bias);
#endif
    default: return score<VECTORS>(queries, K, keys, scores, bias);
  }
}

// sums [ROWS, width] x shrink + weights x values.
template <int COUNT>
inline void weigh(const float* weights, const float* values, int count, long width, const float* shrink, float* sums) {
  Vector totals[ROWS][COUNT];
  TIGHTBEAM_UNROLL
  for (int q = 0; q < ROWS; ++q) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) totals[q][i] = load(sums + q * width + i * LANES) * shrink[q];
  }
  for (int t = 0; t < count; ++t) {
    Vector value[COUNT];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) value[i] = load(values + t * width + i * LANES);
    TIGHTBEAM_UNROLL
    for (int q = 0; q < ROWS; ++q) {
      const Vector weight = broadcast(weights[q * BLOCK + t]);
      TIGHTBEAM_UNROLL
      for (int i = 0; i < COUNT; ++i) totals[q][i] += weight * value[i];
    }
  }
  TIGHTBEAM_UNROLL
  for (int q = 0; q < ROWS; ++q) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) store(sums + q * width + i * LANES, totals[q][i]);
  }
}

// Lane i is lane i + by of the vector, round.
template <int BY>
inline Vector rotated(Vector v) {
#if TIGHTBEAM_LANES == 16
  return __builtin_shufflevector(v, v, BY, 1 + BY, 2 + BY, 3 + BY, 4 + BY, 5 + BY, 6 + BY, 7 + BY, 8 + BY, 9 + BY,
                                 10 + BY, 11 + BY, 12 + BY, 13 + BY, 14 + BY, 15 + BY);
#elif TIGHTBEAM_LANES == 8
  return __builtin_shufflevector(v, v, BY, 1 + BY, 2 + BY, 3 + BY, 4 + BY, 5 + BY, 6 + BY, 7 + BY);
#else
  return __builtin_shufflevector(v, v, BY, 1 + BY, 2 + BY, 3 + BY);
#endif
}

inline Vector greater(Vector a, Vector b) { return a > b ? a : b; }

// Halves are combined until one number is left.
inline float greatest(Vector v) {
#if TIGHTBEAM_LANES == 16
  v = greater(v, rotated<8>(v));
#endif
#if TIGHTBEAM_LANES >= 8
  v = greater(v, rotated<4>(v));
#endif
  v = greater(v, rotated<2>(v));
  return greater(v, rotated<1>(v))[0];
}

inline float total_of(Vector v) {
#if TIGHTBEAM_LANES == 16
  v += rotated<8>(v);
#endif
#if TIGHTBEAM_LANES >= 8
  v += rotated<4>(v);
#endif
  v += rotated<2>(v);
  return (v + rotated<1>(v))[0];
}

// What a query has seen so far.
struct State {
  float highest[QUERIES], totals[QUERIES], shrink[QUERIES];
};

// Scores to weights. NaN is never the highest, and goes on to its own weight, and so to the output.
inline void soften(float* scores, int vectors, State& state, int q) {
  Vector best[VECTORS];  // several, since each waits for the one before
  TIGHTBEAM_UNROLL
  for (int lane = 0; lane < VECTORS; ++lane) best[lane] = broadcast(NOTHING);
  for (int i = 0; i < vectors; i += VECTORS) {
    TIGHTBEAM_UNROLL
    for (int lane = 0; lane < VECTORS; ++lane) {
      const Vector next = load(scores + (i + lane) * LANES);
      best[lane] = next > best[lane] ? next : best[lane];
    }
  }
  TIGHTBEAM_UNROLL
  for (int lane = 1; lane < VECTORS; ++lane) best[0] = best[lane] > best[0] ? best[lane] : best[0];
  const float above = greatest(best[0]), before = state.highest[q];
  state.shrink[q] = 1;
  if (above > before) {
    state.shrink[q] = before == NOTHING ? 0 : exponential(broadcast(before - above))[0];
    state.highest[q] = above;
  }
  const float shift = state.highest[q] == NOTHING ? 0 : state.highest[q];
  Vector total = {};
  for (int i = 0; i < vectors; ++i) {
    const Vector weights = exponential(load(scores + i * LANES) - shift);
    store(scores + i * LANES, weights);
    total += weights;
  }
  state.totals[q] = state.totals[q] * state.shrink[q] + total_of(total);
}

void attend(const EncoderHead& h, const float* keys, const float* values, int begin, int end, float* workspace,
            float* output) {
  const int K = h.K;
  const long V = padded(h.V, LANES);
  float* queries = workspace;
  float* scores = queries + QUERIES * long{K};
  float* sums = scores + QUERIES * long{BLOCK};
  float* gathered = sums + QUERIES * V;  // biases, where the positions that count are not neighbours
  State& state = *reinterpret_cast<State*>(gathered + QUERIES * long{BLOCK});
  const bool neighbours = h.count == 0 || h.positions[h.count - 1] - h.positions[0] == h.count - 1;
  for (int first = begin; first < end; first += QUERIES) {
    const int Q = smaller(QUERIES, end - first);
    const int rows = static_cast<int>(padded(Q, ROWS));
    for (int q = 0; q < rows; ++q) {
      const float* query = h.query + h.positions[first + smaller(q, Q - 1)] * h.stride;
      for (int k = 0; k < K; ++k) queries[q * long{K} + k] = query[k] * h.scale;
      for (int v = 0; v < V; ++v) sums[q * V + v] = 0;
      state.highest[q] = NOTHING;
      state.totals[q] = 0;
    }
    for (int start = 0; start < h.count; start += BLOCK) {
      const int count = smaller(BLOCK, h.count - start);
      const int vectors = static_cast<int>(padded(count, LANES)) / LANES;
      const float* bias_rows[QUERIES];
      for (int q = 0; h.bias != nullptr && q < rows; ++q) {
        const float* own = h.bias - h.positions[first + smaller(q, Q - 1)];
        bias_rows[q] = own + h.positions[start];
        if (neighbours) continue;
        for (int t = 0; t < count; ++t) gathered[q * BLOCK + t] = own[h.positions[start + t]];
        bias_rows[q] = gathered + q * BLOCK;
      }
      for (int t = 0; t < count; t += TILE) {
        for (int q = 0; q < rows; q += ROWS) {
          if (t == 0 && start == 0)
            for (int i = 0; i < ROWS; ++i)
              fetch(h.query + h.positions[smaller(first + QUERIES + q + i, end - 1)] * h.stride, K);
          const float* bias[ROWS];
          for (int i = 0; h.bias != nullptr && i < ROWS; ++i) bias[i] = bias_rows[q + i] + t;
          score_some(smaller(VECTORS, vectors - t / LANES), queries + q * long{K}, K, keys + (start + t) * long{K},
                     scores + q * BLOCK + t, h.bias == nullptr ? nullptr : bias);
        }
      }
      for (int q = 0; q < rows; ++q) {
        for (int t = count; t < static_cast<int>(padded(count, TILE)); ++t) scores[q * BLOCK + t] = NOTHING;
        soften(scores + q * BLOCK, vectors, state, q);
      }
      for (int t = 0; t < count; t += STRETCH) {
        const int own = smaller(STRETCH, count - t);
        for (int q = 0; q < rows; q += ROWS) {
          if (start + t + STRETCH >= h.count)
            for (int i = 0; i < ROWS; ++i) {
              const float* to = output + h.positions[smaller(first + q + i, end - 1)] * h.value_stride;
              for (int v = 0; v < h.V; v += 16) __builtin_prefetch(to + v, 1, 3);
            }
          const float* weights = scores + q * BLOCK + t;
          int v = 0;
          for (; v + VECTORS * LANES <= V; v += VECTORS * LANES)
            weigh<VECTORS>(weights, values + (start + t) * V + v, own, V, state.shrink + q, sums + q * V + v);
          for (; v < V; v += LANES)
            weigh<1>(weights, values + (start + t) * V + v, own, V, state.shrink + q, sums + q * V + v);
        }
        for (int q = 0; q < rows; ++q) state.shrink[q] = 1;
      }
    }
    for (int q = 0; q < Q; ++q) {
      const float factor = state.totals[q] == 0 ? 0 : 1 / state.totals[q];
      float* to = output + h.positions[first + q] * h.value_stride;
      for (int v = 0; v < h.V; ++v) to[v] = sums[q * V + v] * factor;
    }
  }
}

}  // namespace

extern const EncoderAttentionKernels TIGHTBEAM_JOIN(ENCODER_ATTENTION_, TIGHTBEAM_ISA);
const EncoderAttentionKernels TIGHTBEAM_JOIN(ENCODER_ATTENTION_, TIGHTBEAM_ISA) = {
    TIGHTBEAM_TEXT(TIGHTBEAM_ISA), keys_size, values_size, workspace_size, pack, attend,
};

}  // namespace tightbeam
