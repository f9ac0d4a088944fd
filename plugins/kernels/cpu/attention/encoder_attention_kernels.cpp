// Compiled once for each instruction set, like math_kernels.cpp, and under the same rule: only the table may have
// external linkage.
//
// A tile of queries goes over the keys block by block (FlashAttention-2, algorithm 1): it computes scores, their
// exponentials relative to the row max so far, and the weighted sum of the values. In both products, ROWS x VECTORS
// registers hold sums. The keys are packed in tiles of columns, so that no sum runs across the lanes of a register. A
// query's numbers are computed in the same order beside any other queries.
#include "kernels/cpu/attention/encoder_attention.h"
#include "kernels/cpu/vectors.h"

namespace tightbeam {
namespace {

constexpr int ROWS = 6, VECTORS = REGISTERS == 32 ? 4 : 2;
constexpr int TILE = VECTORS * LANES;  // keys side by side
constexpr int QUERIES = 48;            // queries of a tile, a multiple of ROWS
constexpr int BLOCK = 512;             // keys of a block, a multiple of TILE
constexpr int STRETCH = 64;            // keys whose values fit the first cache
constexpr float MINUS_INFINITY = -__builtin_inff();

inline int smaller(int a, int b) { return a < b ? a : b; }
inline int larger_of(int a, int b) { return a > b ? a : b; }
inline long padded(long count, long multiple) { return (count + multiple - 1) / multiple * multiple; }
inline void fetch(const float* numbers, int count) {
  for (int i = 0; i < count; i += 16) __builtin_prefetch(numbers + i, 0, 3);
}

long keys_size(int count, int K) { return padded(count, TILE) * K; }
long values_size(int count, int V) { return count * padded(V, LANES); }
long workspace_size(int K, int V) { return QUERIES * (long{K} + BLOCK + padded(V, LANES) + BLOCK) + 3 * QUERIES; }

// Packs keys as [tiles, K, TILE], and values as [count, V padded to whole registers].
void pack(const AttentionHead& h, float* keys, float* values) {
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
      const Columns<Four> columns = columns_of(load_as<Four>(rows[0] + k), load_as<Four>(rows[1] + k),
                                               load_as<Four>(rows[2] + k), load_as<Four>(rows[3] + k));
      for (int i = 0; i < 4; ++i) store_as(tile + (k + i) * TILE, columns.of[i]);
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
#if TIGHTBEAM_REGISTERS == 32
    case 2: return score<2>(queries, K, keys, scores, bias);
    case 3: return score<3>(queries, K, keys, scores, bias);
#endif
    default: return score<VECTORS>(queries, K, keys, scores, bias);
  }
}

// sums[ROWS, width] becomes sums x shrink + weights x values.
template <int COUNT>
inline void add_values(const float* weights, const float* values, int count, long width, const float* shrink,
                       float* sums) {
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

// The softmax of each query over the keys so far.
struct State {
  float row_max[QUERIES], row_sum[QUERIES], shrink[QUERIES];
};

// Turns a query's scores of a block into weights. A NaN is never the row max, so it reaches its own weight and the
// output.
inline void weigh_scores(float* scores, int vectors, State& state, int q) {
  Vector best[VECTORS];  // several, so that they need not wait for one another
  TIGHTBEAM_UNROLL
  for (int lane = 0; lane < VECTORS; ++lane) best[lane] = broadcast(MINUS_INFINITY);
  for (int i = 0; i < vectors; i += VECTORS) {
    TIGHTBEAM_UNROLL
    for (int lane = 0; lane < VECTORS; ++lane) {
      const Vector next = load(scores + (i + lane) * LANES);
      best[lane] = next > best[lane] ? next : best[lane];
    }
  }
  TIGHTBEAM_UNROLL
  for (int lane = 1; lane < VECTORS; ++lane) best[0] = best[lane] > best[0] ? best[lane] : best[0];
  const float above = max_of_lanes(best[0]), before = state.row_max[q];
  state.shrink[q] = 1;
  if (above > before) {
    state.shrink[q] = before == MINUS_INFINITY ? 0 : exponential(broadcast(before - above))[0];
    state.row_max[q] = above;
  }
  const float shift = state.row_max[q] == MINUS_INFINITY ? 0 : state.row_max[q];
  Vector total = {};
  for (int i = 0; i < vectors; i += VECTORS) {
    Vector weights[VECTORS];
    exponentials_from(scores + i * LANES, broadcast(shift), weights);
    TIGHTBEAM_UNROLL
    for (int lane = 0; lane < VECTORS; ++lane) {
      store(scores + (i + lane) * LANES, weights[lane]);
      total += weights[lane];
    }
  }
  state.row_sum[q] = state.row_sum[q] * state.shrink[q] + sum_of_lanes(total);
}

// tanh, to 3 units in the last place.
inline Vector hyperbolic_tangent(Vector x) {
  const Vector size = x < 0.0f ? -x : x, square = x * x;
  Vector series = broadcast(-1382.0f / 155925);
  series = series * square + 62.0f / 2835;
  series = series * square - 17.0f / 315;
  series = series * square + 2.0f / 15;
  series = series * square - 1.0f / 3;
  series = x + x * square * series;
  const Vector e = exponential(-2.0f * size), far = (1.0f - e) / (1.0f + e);
  return size < 0.25f ? series : x < 0.0f ? -far : far;
}

// Caps the scores of a query for the keys [begin, end), multiples of LANES, and then adds their biases.
inline void cap(float* scores, int begin, int end, float softcap, const float* bias) {
  for (int t = begin; t < end; t += LANES) {
    const Vector capped = softcap * hyperbolic_tangent(load(scores + t) / softcap);
    store(scores + t, bias ? capped + load(bias + t) : capped);
  }
}

// Hides the keys of a block that a query does not see: those before `from`, and from `to` to the end of the last tile.
inline void hide(float* scores, int begin, int from, int to, int end) {
  for (int t = begin; t < from; ++t) scores[t] = MINUS_INFINITY;
  for (int t = larger_of(begin, to); t < end; ++t) scores[t] = MINUS_INFINITY;
}

void attend(const AttentionHead& h, const float* keys, const float* values, int begin, int end, float* workspace,
            float* output) {
  const int K = h.K;
  const long V = padded(h.V, LANES);
  float* queries = workspace;
  float* scores = queries + QUERIES * long{K};
  float* sums = scores + QUERIES * long{BLOCK};
  float* gathered = sums + QUERIES * V;  // biases, if the positions that count have gaps
  State& state = *reinterpret_cast<State*>(gathered + QUERIES * long{BLOCK});
  const Sight& sight = h.sight;
  const bool neighbours = h.count == 0 || h.positions[h.count - 1] - h.positions[0] == h.count - 1;
  const bool adds = h.bias != nullptr && sight.softcap == 0;  // with the products
  for (int first = begin; first < end; first += QUERIES) {
    const int Q = smaller(QUERIES, end - first);
    const int rows = static_cast<int>(padded(Q, ROWS));
    for (int q = 0; q < rows; ++q) {
      const float* query = h.query + (h.positions[first + smaller(q, Q - 1)] - sight.first) * h.stride;
      for (int k = 0; k < K; ++k) queries[q * long{K} + k] = query[k] * h.scale;
      for (int v = 0; v < V; ++v) sums[q * V + v] = 0;
      state.row_max[q] = MINUS_INFINITY;
      state.row_sum[q] = 0;
    }
    // The keys that some query of the tile sees. Blocks begin at the same keys for all tiles, so that a query's numbers
    // do not depend on its tile.
    const int oldest = sight.window == 0 ? 0 : larger_of(0, first - sight.window + 1);
    const int seen = sight.causal ? first + Q : h.count;
    for (int start = oldest / BLOCK * BLOCK; start < seen; start += BLOCK) {
      const int count = smaller(BLOCK, seen - start), tiles_end = static_cast<int>(padded(count, TILE));
      const int vectors = static_cast<int>(padded(count, LANES)) / LANES;
      const int skipped = larger_of(0, oldest - start) / TILE * TILE;
      const float* bias_rows[QUERIES];
      for (int q = 0; h.bias != nullptr && q < rows; ++q) {
        const float* own = sight.by_key ? h.bias : h.bias - h.positions[first + smaller(q, Q - 1)];
        bias_rows[q] = own + h.positions[start];
        if (neighbours) continue;
        for (int t = 0; t < count; ++t) gathered[q * BLOCK + t] = own[h.positions[start + t]];
        bias_rows[q] = gathered + q * BLOCK;
      }
      for (int t = skipped; t < count; t += TILE) {
        for (int q = 0; q < rows; q += ROWS) {
          if (t == 0 && start == 0)
            for (int i = 0; i < ROWS; ++i)
              fetch(h.query + (h.positions[smaller(first + QUERIES + q + i, end - 1)] - sight.first) * h.stride, K);
          const float* bias[ROWS];
          for (int i = 0; adds && i < ROWS; ++i) bias[i] = bias_rows[q + i] + t;
          score_some(smaller(VECTORS, vectors - t / LANES), queries + q * long{K}, K, keys + (start + t) * long{K},
                     scores + q * BLOCK + t, adds ? bias : nullptr);
        }
      }
      for (int q = 0; q < rows; ++q) {
        float* own = scores + q * BLOCK;
        if (sight.softcap != 0) cap(own, skipped, vectors * LANES, sight.softcap, h.bias ? bias_rows[q] : nullptr);
        const int place = first + smaller(q, Q - 1) - start;  // of the query itself in the block
        const int to = sight.causal ? smaller(count, place + 1) : count;
        hide(own, skipped, sight.window == 0 ? 0 : smaller(to, place - sight.window + 1), to, tiles_end);
        weigh_scores(own + skipped, vectors - skipped / LANES, state, q);
      }
      for (int t = skipped; t < count; t += STRETCH) {
        const int own = smaller(STRETCH, count - t);
        for (int q = 0; q < rows; q += ROWS) {
          if (start + t + STRETCH >= seen)
            for (int i = 0; i < ROWS; ++i) {
              const float* to = output + (h.positions[smaller(first + q + i, end - 1)] - sight.first) * h.output_stride;
              for (int v = 0; v < h.V; v += 16) __builtin_prefetch(to + v, 1, 3);
            }
          const float* weights = scores + q * BLOCK + t;
          int v = 0;
          for (; v + VECTORS * LANES <= V; v += VECTORS * LANES)
            add_values<VECTORS>(weights, values + (start + t) * V + v, own, V, state.shrink + q, sums + q * V + v);
          for (; v < V; v += LANES)
            add_values<1>(weights, values + (start + t) * V + v, own, V, state.shrink + q, sums + q * V + v);
        }
        for (int q = 0; q < rows; ++q) state.shrink[q] = 1;
      }
    }
    for (int q = 0; q < Q; ++q) {
      const float factor = state.row_sum[q] == 0 ? 0 : 1 / state.row_sum[q];
      float* to = output + (h.positions[first + q] - sight.first) * h.output_stride;
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
