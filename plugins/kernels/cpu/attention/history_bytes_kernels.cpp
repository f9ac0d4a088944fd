// Compiled once for each instruction set, like math_kernels.cpp, and under the same rule: only the table may have
// external linkage. Compiled without contraction (cmake/InstructionSets.cmake).
#include "kernels/cpu/attention/history_bytes.h"
#include "kernels/cpu/vectors.h"

#if TIGHTBEAM_LANES > 4
#include <immintrin.h>
#endif

namespace tightbeam {
namespace {

constexpr int PARTS = SUMMED_TOGETHER / LANES;  // registers of the numbers that are added side by side
constexpr UpcomingBytes FETCHED{nullptr, 0, 0};

// The LANES integers that begin at `bytes`. (`__builtin_convertvector` from bytes goes one by one.)
inline Vector numbers_of(const signed char* bytes) {
#if TIGHTBEAM_LANES == 16
  const Integers wide =
      (Integers)_mm512_maskz_cvtepi8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif TIGHTBEAM_LANES == 8
  const Integers wide = (Integers)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
  typedef signed char Bytes __attribute__((vector_size(16)));
  Bytes narrow = {};
  __builtin_memcpy(&narrow, bytes, 4);
  const Integers wide =
      (Integers)__builtin_shufflevector(narrow, narrow, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3) >> 24;
#endif
  return __builtin_convertvector(wide, Vector);
}

inline void fetch(UpcomingBytes next, int row) {
  if (row >= next.count) return;
  for (long byte = 0; byte < next.width; byte += 64) __builtin_prefetch(next.rows[row] + byte, 0, 2);
}

// The last `count` integers of a row, then zeros.
inline void copy_end(const signed char* from, int count, signed char* to) {
  __builtin_memset(to, 0, SUMMED_TOGETHER);
  __builtin_memcpy(to, from, count);
}

// Adds the products of 16 numbers of QUERIES queries and KEYS keys to sums of one part of them.
template <int QUERIES, int KEYS>
inline void add_products(const float* queries, long width, const signed char* const* keys, long k, Vector* sums) {
  Vector query[QUERIES];
  TIGHTBEAM_UNROLL
  for (int q = 0; q < QUERIES; ++q) query[q] = load(queries + q * width);
  TIGHTBEAM_UNROLL
  for (int i = 0; i < KEYS; ++i) {
    const Vector key = numbers_of(keys[i] + k);
    TIGHTBEAM_UNROLL
    for (int q = 0; q < QUERIES; ++q) sums[q * KEYS + i] += query[q] * key;
  }
}

// Computes QUERIES x KEYS = LANES dot products at a time, so that one tree of shuffles sums them all. A sum has 16
// parts on every instruction set, which are added as in `sums_of` for 16 lanes.
template <int QUERIES>
void dot_block(const float* queries, const signed char* const* keys, const float* scales, int count, int K,
               float factor, float* scores, long stride, UpcomingBytes next) {
  constexpr int KEYS = LANES / QUERIES;
  const int whole = K / SUMMED_TOGETHER * SUMMED_TOGETHER;
  const long width = whole < K ? whole + SUMMED_TOGETHER : whole;
  signed char ends[KEYS][SUMMED_TOGETHER];
  for (int t = 0; t < count; t += KEYS) {
    const signed char* rows[KEYS];
    const signed char* last[KEYS];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < KEYS; ++i) rows[i] = keys[t + i < count ? t + i : count - 1];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < KEYS; ++i) fetch(next, t + i);
    if (whole < K) {
      TIGHTBEAM_UNROLL
      for (int i = 0; i < KEYS; ++i) {
        copy_end(rows[i] + whole, K - whole, ends[i]);
        last[i] = ends[i];
      }
    }
    Vector sums[PARTS][LANES] = {};
    TIGHTBEAM_UNROLL
    for (int part = 0; part < PARTS; ++part) {
      const float* const own = queries + part * LANES;
      for (int k = 0; k < whole; k += SUMMED_TOGETHER)
        add_products<QUERIES, KEYS>(own + k, width, rows, k + part * LANES, sums[part]);
      if (whole < K) add_products<QUERIES, KEYS>(own + whole, width, last, part * LANES, sums[part]);
    }
    TIGHTBEAM_UNROLL
    for (int half = PARTS / 2; half > 0; half /= 2) {
      TIGHTBEAM_UNROLL
      for (int part = 0; part < half; ++part) {
        TIGHTBEAM_UNROLL
        for (int i = 0; i < LANES; ++i) sums[part][i] += sums[part + half][i];
      }
    }
    float results[LANES];
    store(results, sums_of(sums[0]));
    const int left = count - t < KEYS ? count - t : KEYS;
    TIGHTBEAM_UNROLL
    for (int q = 0; q < QUERIES; ++q)
      for (int i = 0; i < left; ++i) scores[q * stride + t + i] = results[q * KEYS + i] * scales[t + i] * factor;
  }
}

void dot(const float* queries, int Q, const signed char* const* keys, const float* scales, int count, int K,
         float factor, float* scores, long stride, UpcomingBytes next) {
  const long width = (K + SUMMED_TOGETHER - 1) / SUMMED_TOGETHER * SUMMED_TOGETHER;
  for (int q = 0; q < Q; next = FETCHED) {
    const float* const own = queries + q * width;
    float* const to = scores + q * stride;
    if (Q - q >= 4) {
      dot_block<4>(own, keys, scales, count, K, factor, to, stride, next);
      q += 4;
    } else if (Q - q >= 2) {
      dot_block<2>(own, keys, scales, count, K, factor, to, stride, next);
      q += 2;
    } else {
      dot_block<1>(own, keys, scales, count, K, factor, to, stride, next);
      q += 1;
    }
  }
}

// Keeps QUERIES x VECTORS registers of sums of the columns from v on, over all positions, before it stores them.
template <int QUERIES, int VECTORS>
void weighted_block(const float* weights, long stride, const signed char* const* values, int count, int v, float* sums,
                    long sums_stride, UpcomingBytes next) {
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
    for (int i = 0; i < VECTORS; ++i) value[i] = numbers_of(values[t] + v + i * LANES);
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

constexpr int MOST_ENDS = 32;  // positions whose last columns are copied at a time

template <int QUERIES>
void weighted_queries(const float* weights, long stride, const signed char* const* values, int count, int V,
                      float* sums, long sums_stride, UpcomingBytes next) {
  constexpr int VECTORS = REGISTERS == 32 ? 4 : 2;
  int v = 0;
  for (; v + VECTORS * LANES <= V; v += VECTORS * LANES, next = FETCHED)
    weighted_block<QUERIES, VECTORS>(weights, stride, values, count, v, sums + v, sums_stride, next);
  for (; v + LANES <= V; v += LANES, next = FETCHED)
    weighted_block<QUERIES, 1>(weights, stride, values, count, v, sums + v, sums_stride, next);
  if (v == V) return;
  for (int t = 0; t < count; t += MOST_ENDS) {
    const int some = count - t < MOST_ENDS ? count - t : MOST_ENDS;
    signed char ends[MOST_ENDS][SUMMED_TOGETHER];
    const signed char* rows[MOST_ENDS];
    for (int i = 0; i < some; ++i) {
      copy_end(values[t + i] + v, V - v, ends[i]);
      rows[i] = ends[i];
    }
    weighted_block<QUERIES, 1>(weights + t, stride, rows, some, 0, sums + v, sums_stride, FETCHED);
  }
}

void add_weighted(const float* weights, long stride, int Q, const signed char* const* values, int count, int V,
                  float* sums, long sums_stride, UpcomingBytes next) {
  for (int q = 0; q < Q; next = FETCHED) {
    const float* const own = weights + q * stride;
    float* const to = sums + q * sums_stride;
    if (Q - q >= 4) {
      weighted_queries<4>(own, stride, values, count, V, to, sums_stride, next);
      q += 4;
    } else {
      weighted_queries<1>(own, stride, values, count, V, to, sums_stride, next);
      q += 1;
    }
  }
}

// numbers[i] = exp(numbers[i] - shift) of some groups of SUMMED_TOGETHER, each of which is added to the totals in turn.
template <int GROUPS>
inline void weigh(float* numbers, Vector shift, Vector (&totals)[PARTS]) {
  Vector several[GROUPS * PARTS];
  exponentials_from(numbers, shift, several);
  TIGHTBEAM_UNROLL
  for (int i = 0; i < GROUPS * PARTS; ++i) {
    store(numbers + i * LANES, several[i]);
    totals[i % PARTS] += several[i];
  }
}

float exponentials(float* numbers, long count, float shift) {
  const Vector by = broadcast(shift);
  Vector totals[PARTS] = {};
  long i = 0;
  constexpr int TOGETHER = PARTS < SIDE_BY_SIDE ? SIDE_BY_SIDE / PARTS : 1;  // groups of numbers
  for (; i + TOGETHER * SUMMED_TOGETHER <= count; i += TOGETHER * SUMMED_TOGETHER)
    weigh<TOGETHER>(numbers + i, by, totals);
  for (; i + SUMMED_TOGETHER <= count; i += SUMMED_TOGETHER) weigh<1>(numbers + i, by, totals);
  if (i < count) {
    float last[SUMMED_TOGETHER];
    for (float& number : last) number = -__builtin_inff();
    __builtin_memcpy(last, numbers + i, (count - i) * sizeof(float));
    weigh<1>(last, by, totals);
    __builtin_memcpy(numbers + i, last, (count - i) * sizeof(float));
  }
  float sums[SUMMED_TOGETHER];
  TIGHTBEAM_UNROLL
  for (int part = 0; part < PARTS; ++part) store(sums + part * LANES, totals[part]);
  for (int half = SUMMED_TOGETHER / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

}  // namespace

extern const HistoryBytes TIGHTBEAM_JOIN(HISTORY_BYTES_, TIGHTBEAM_ISA);
const HistoryBytes TIGHTBEAM_JOIN(HISTORY_BYTES_, TIGHTBEAM_ISA) = {
    TIGHTBEAM_TEXT(TIGHTBEAM_ISA),
    dot,
    add_weighted,
    exponentials,
};

}  // namespace tightbeam
