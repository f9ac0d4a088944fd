// Compiled once for each instruction set (cmake/InstructionSets.cmake): TIGHTBEAM_ISA names the set, and
// TIGHTBEAM_LANES is the number of floats in its registers. Only the table may have external linkage: the linker would
// share any other function between the copies, and so bring wide instructions to machines without them. So this file
// uses inline code only from vectors.h, whose code has internal linkage.
#include "kernels/cpu/math.h"
#include "kernels/cpu/vectors.h"

namespace tightbeam {
namespace {

constexpr Upcoming FETCHED{nullptr, 0, 0};

inline void fetch(Upcoming next, int row) {
  if (row >= next.count) return;
  const char* begin = reinterpret_cast<const char*>(next.rows[row]);
  for (long byte = 0; byte < next.width * long{sizeof(float)}; byte += 64) __builtin_prefetch(begin + byte, 0, 2);
}

// All bits set in the lanes from `first` on.
inline Integers lanes_from(int first) {
  Integers lanes;
  for (int lane = 0; lane < LANES; ++lane) lanes[lane] = lane < first ? 0 : -1;
  return lanes;
}

// Trees of shuffles, each of which sums LANES vectors: so many that the sums of all use half of the registers.
constexpr int TREES = REGISTERS == 32 ? 16 / LANES : 1;

// Computes QUERIES x KEYS dot products at a time, so that each tree of shuffles sums LANES of them.
template <int QUERIES>
void dot_block(const float* queries, const float* const* keys, int count, int K, float* scores, int stride,
               Upcoming next) {
  constexpr int KEYS = TREES * LANES / QUERIES;
  const int whole = K / LANES * LANES;
  // The last numbers of wide keys are the end of a whole vector, whose other lanes count 0.
  const bool overlaps = whole < K && K >= LANES;
  const Integers counts = lanes_from(LANES - (K - whole));
  Vector last_query[QUERIES] = {};
  if (overlaps) {
    TIGHTBEAM_UNROLL
    for (int q = 0; q < QUERIES; ++q) last_query[q] = counts ? load(queries + q * long{K} + K - LANES) : Vector{};
  }
  for (int t = 0; t < count; t += KEYS) {
    const float* rows[KEYS];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < KEYS; ++i) rows[i] = keys[t + i < count ? t + i : count - 1];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < KEYS; ++i) fetch(next, t + i);
    Vector sums[TREES * LANES] = {};
    for (int k = 0; k < whole; k += LANES) {
      Vector query[QUERIES];
      TIGHTBEAM_UNROLL
      for (int q = 0; q < QUERIES; ++q) query[q] = load(queries + q * long{K} + k);
      TIGHTBEAM_UNROLL
      for (int i = 0; i < KEYS; ++i) {
        const Vector key = load(rows[i] + k);
        TIGHTBEAM_UNROLL
        for (int q = 0; q < QUERIES; ++q) sums[q * KEYS + i] += query[q] * key;
      }
    }
    if (overlaps) {
      TIGHTBEAM_UNROLL
      for (int i = 0; i < KEYS; ++i) {
        const Vector key = counts ? load(rows[i] + K - LANES) : Vector{};
        TIGHTBEAM_UNROLL
        for (int q = 0; q < QUERIES; ++q) sums[q * KEYS + i] += last_query[q] * key;
      }
    } else if (whole < K) {
      TIGHTBEAM_UNROLL
      for (int i = 0; i < KEYS; ++i) {
        const Vector key = load_some(rows[i] + whole, K - whole);
        TIGHTBEAM_UNROLL
        for (int q = 0; q < QUERIES; ++q)
          sums[q * KEYS + i] += load_some(queries + q * long{K} + whole, K - whole) * key;
      }
    }
    float results[TREES * LANES];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < TREES * LANES; i += LANES) store(results + i, sums_of(sums + i));
    const int left = count - t < KEYS ? count - t : KEYS;
    TIGHTBEAM_UNROLL
    for (int q = 0; q < QUERIES; ++q)
      for (int i = 0; i < left; ++i) scores[q * stride + t + i] = results[q * KEYS + i];
  }
}

void dot(const float* queries, int Q, const float* const* keys, int count, int K, float* scores, int stride,
         Upcoming next) {
  for (int q = 0; q < Q; next = FETCHED) {
    const float* own = queries + q * long{K};
    if (Q - q >= 4) {
      dot_block<4>(own, keys, count, K, scores + q * stride, stride, next);
      q += 4;
    } else if (Q - q >= 2) {
      dot_block<2>(own, keys, count, K, scores + q * stride, stride, next);
      q += 2;
    } else {
      dot_block<1>(own, keys, count, K, scores + q * stride, stride, next);
      q += 1;
    }
  }
}

// Keeps QUERIES x VECTORS registers of sums of the columns from v on, over all positions, before it stores them.
template <int QUERIES, int VECTORS>
void weighted_block(const float* weights, int stride, const float* const* values, int count, int v, float* sums,
                    long sums_stride, Upcoming next) {
  Vector totals[QUERIES][VECTORS];
  TIGHTBEAM_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < VECTORS; ++i) totals[q][i] = load(sums + q * sums_stride + i * LANES);
  }
  for (int t = 0; t < count; ++t) {
    fetch(next, t);
    Vector value[VECTORS];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < VECTORS; ++i) value[i] = load(values[t] + v + i * LANES);
    TIGHTBEAM_UNROLL
    for (int q = 0; q < QUERIES; ++q) {
      const Vector weight = broadcast(weights[q * stride + t]);
      TIGHTBEAM_UNROLL
      for (int i = 0; i < VECTORS; ++i) totals[q][i] += weight * value[i];
    }
  }
  TIGHTBEAM_UNROLL
  for (int q = 0; q < QUERIES; ++q) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < VECTORS; ++i) store(sums + q * sums_stride + i * LANES, totals[q][i]);
  }
}

template <int QUERIES>
void weighted_queries(const float* weights, int stride, const float* const* values, int count, int V, float* sums,
                      long sums_stride, Upcoming next) {
  constexpr int VECTORS = REGISTERS == 32 ? 4 : 2;
  // The last columns of wide values are the end of a whole vector. Its other columns are summed twice, and stored last.
  const bool overlaps = V % LANES != 0 && V >= LANES;
  float last[QUERIES * LANES];
  if (overlaps) {
    for (int q = 0; q < QUERIES; ++q) store(last + q * LANES, load(sums + q * sums_stride + V - LANES));
    weighted_block<QUERIES, 1>(weights, stride, values, count, V - LANES, last, LANES, next);
    next = FETCHED;
  }
  int v = 0;
  for (; v + VECTORS * LANES <= V; v += VECTORS * LANES, next = FETCHED)
    weighted_block<QUERIES, VECTORS>(weights, stride, values, count, v, sums + v, sums_stride, next);
  for (; v + LANES <= V; v += LANES, next = FETCHED)
    weighted_block<QUERIES, 1>(weights, stride, values, count, v, sums + v, sums_stride, next);
  if (overlaps) {
    for (int q = 0; q < QUERIES; ++q) store(sums + q * sums_stride + V - LANES, load(last + q * LANES));
    return;
  }
  if (v == V) return;
  for (int q = 0; q < QUERIES; ++q) {
    Vector total = load_some(sums + q * sums_stride + v, V - v);
    for (int t = 0; t < count; ++t) total += broadcast(weights[q * stride + t]) * load_some(values[t] + v, V - v);
    store_some(sums + q * sums_stride + v, total, V - v);
  }
}

void add_weighted(const float* weights, int stride, int Q, const float* const* values, int count, int V, float* sums,
                  long sums_stride, Upcoming next) {
  for (int q = 0; q < Q; next = FETCHED) {
    const float* own = weights + q * stride;
    if (Q - q >= 4) {
      weighted_queries<4>(own, stride, values, count, V, sums + q * sums_stride, sums_stride, next);
      q += 4;
    } else {
      weighted_queries<1>(own, stride, values, count, V, sums + q * sums_stride, sums_stride, next);
      q += 1;
    }
  }
}

float row_max(const float* numbers, size_t count) {
  constexpr int PARTS = 4;  // so that the comparisons need not wait for one another
  const float nothing = -__builtin_inff();
  Vector best[PARTS];
  Integers nan = {};
  TIGHTBEAM_UNROLL
  for (int part = 0; part < PARTS; ++part) best[part] = broadcast(nothing);
  const auto add = [&](Vector next, int part) {
    best[part] = larger(next, best[part]);
    nan |= next != next;
  };
  size_t i = 0;
  for (; i + PARTS * LANES <= count; i += PARTS * LANES) {
    TIGHTBEAM_UNROLL
    for (int part = 0; part < PARTS; ++part) add(load(numbers + i + part * LANES), part);
  }
  for (; i + LANES <= count; i += LANES) add(load(numbers + i), 0);
  float result = max_of_lanes(larger(larger(best[0], best[1]), larger(best[2], best[3])));
  if (any_of(nan)) return __builtin_nanf("");
  for (; i < count; ++i) {
    if (numbers[i] != numbers[i]) return __builtin_nanf("");
    if (numbers[i] > result) result = numbers[i];
  }
  return result;
}

float exponentials(float* numbers, size_t count, float shift) {
  const Vector by = broadcast(shift);
  Vector total = {};
  size_t i = 0;
  for (; i + SIDE_BY_SIDE * LANES <= count; i += SIDE_BY_SIDE * LANES) {
    Vector several[SIDE_BY_SIDE];
    exponentials_from(numbers + i, by, several);
    TIGHTBEAM_UNROLL
    for (int part = 0; part < SIDE_BY_SIDE; ++part) {
      store(numbers + i + part * LANES, several[part]);
      total += several[part];
    }
  }
  for (; i + LANES <= count; i += LANES) {
    const Vector result = exponential(load(numbers + i) - by);
    store(numbers + i, result);
    total += result;
  }
  if (i < count) {
    const int left = static_cast<int>(count - i);
    const Vector result = exponential(load_some(numbers + i, left) - by);
    store_some(numbers + i, result, left);
    float sum = sum_of_lanes(total);
    for (int lane = 0; lane < left; ++lane) sum += result[lane];
    return sum;
  }
  return sum_of_lanes(total);
}

float sum_of_exponentials(const float* numbers, size_t count, float shift) {
  const Vector by = broadcast(shift);
  Vector totals[SIDE_BY_SIDE] = {};
  size_t i = 0;
  for (; i + SIDE_BY_SIDE * LANES <= count; i += SIDE_BY_SIDE * LANES) {
    Vector several[SIDE_BY_SIDE];
    exponentials_from(numbers + i, by, several);
    TIGHTBEAM_UNROLL
    for (int part = 0; part < SIDE_BY_SIDE; ++part) totals[part] += several[part];
  }
  for (; i + LANES <= count; i += LANES) totals[0] += exponential(load(numbers + i) - by);
  TIGHTBEAM_UNROLL
  for (int part = 1; part < SIDE_BY_SIDE; ++part) totals[0] += totals[part];
  float sum = sum_of_lanes(totals[0]);
  if (i < count) {
    const Vector result = exponential(load_some(numbers + i, static_cast<int>(count - i)) - by);
    for (size_t lane = 0; lane < count - i; ++lane) sum += result[lane];
  }
  return sum;
}

void scale(float* numbers, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) numbers[i] *= factor;
}

size_t next_above(const float* numbers, size_t from, size_t count, float threshold) {
  const Vector limit = broadcast(threshold);
  size_t i = from;
  for (; i + 4 * LANES <= count; i += 4 * LANES) {
    const Integers above = (load(numbers + i) > limit) | (load(numbers + i + LANES) > limit) |
                           (load(numbers + i + 2 * LANES) > limit) | (load(numbers + i + 3 * LANES) > limit);
    if (any_of(above)) break;
  }
  for (; i < count; ++i)
    if (numbers[i] > threshold) return i;
  return count;
}

// The sum of term(vector) over a row. Four sums go side by side, so that additions need not wait for one another. Lanes
// beyond the row's end do not count.
template <class Term>
inline float sum_of(const float* row, long count, const Term& term) {
  Vector totals[4] = {};
  long i = 0;
  for (; i + 4 * LANES <= count; i += 4 * LANES) {
    TIGHTBEAM_UNROLL
    for (int part = 0; part < 4; ++part) totals[part] += term(load(row + i + part * LANES));
  }
  for (; i + LANES <= count; i += LANES) totals[0] += term(load(row + i));
  float sum = sum_of_lanes((totals[0] + totals[1]) + (totals[2] + totals[3]));
  if (i < count) {
    const Vector last = term(load_some(row + i, static_cast<int>(count - i)));
    for (int lane = 0; lane < count - i; ++lane) sum += last[lane];
  }
  return sum;
}

void normalize(const float* row, long count, const float* weight, const float* bias, float epsilon, bool centred,
               float* normalized) {
  const float width = static_cast<float>(count);
  const float mean = centred ? sum_of(row, count, [](Vector numbers) { return numbers; }) / width : 0;
  const Vector shift = broadcast(mean);
  const float squares = sum_of(row, count, [shift](Vector numbers) {
    const Vector shifted = numbers - shift;
    return shifted * shifted;
  });
  const Vector factor = broadcast(1 / __builtin_sqrtf(squares / width + epsilon));
  long i = 0;
  for (; i + LANES <= count; i += LANES)
    store(normalized + i, (load(row + i) - shift) * factor * load(weight + i) + load(bias + i));
  if (i == count) return;
  const int left = static_cast<int>(count - i);
  const Vector last = (load_some(row + i, left) - shift) * factor * load_some(weight + i, left);
  store_some(normalized + i, last + load_some(bias + i, left), left);
}

}  // namespace

extern const Math TIGHTBEAM_JOIN(MATH_, TIGHTBEAM_ISA);
const Math TIGHTBEAM_JOIN(MATH_, TIGHTBEAM_ISA) = {
    TIGHTBEAM_TEXT(TIGHTBEAM_ISA), dot,   add_weighted, row_max,    exponentials,
    sum_of_exponentials,           scale, normalize,    next_above,
};

}  // namespace tightbeam
