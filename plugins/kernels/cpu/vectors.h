// Vectors of one instruction set, for the files that are compiled once for each set (cmake/InstructionSets.cmake). All
// code here has internal linkage, so that copies are never shared.
#pragma once

// Vector registers of the instruction set.
#if TIGHTBEAM_LANES == 16 || defined(__aarch64__)
#define TIGHTBEAM_REGISTERS 32
#else
#define TIGHTBEAM_REGISTERS 16
#endif

namespace tightbeam {
namespace {

constexpr int REGISTERS = TIGHTBEAM_REGISTERS;
constexpr int LANES = TIGHTBEAM_LANES;
typedef float Vector __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef int Integers __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef unsigned Bits __attribute__((vector_size(4 * TIGHTBEAM_LANES)));

template <class V, class T>
inline V load_as(const T* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class V, class T>
inline void store_as(T* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof vector);
}

inline Vector load(const float* from) { return load_as<Vector>(from); }

inline void store(float* to, Vector vector) { store_as(to, vector); }

// Loads `count` numbers, then zeros.
inline Vector load_some(const float* from, int count) {
  Vector vector = {};
  __builtin_memcpy(&vector, from, count * sizeof(float));
  return vector;
}

inline void store_some(float* to, Vector vector, int count) { __builtin_memcpy(to, &vector, count * sizeof(float)); }

inline Vector broadcast(float number) { return number - Vector{}; }

template <class Four>
struct Columns {
  Four of[4];
};

// Transposes four rows of four numbers.
template <class Four>
inline Columns<Four> columns_of(Four a, Four b, Four c, Four d) {
  const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return {{__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5), __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
           __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
           __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)}};
}

// Unrolls a loop fully: the compiler keeps a small array in registers only if the loops over it are unrolled early.
#define TIGHTBEAM_UNROLL _Pragma("GCC unroll 16")

// Lane i of the result is the sum, or another combination, of the lanes of v[i]: LANES results by LANES - 1 steps with
// two shuffles each.
template <class Combine>
inline Vector combined_lanes(Vector* v, const Combine& combine) {
#if TIGHTBEAM_LANES == 16
  TIGHTBEAM_UNROLL
  for (int i = 0; i < 8; ++i)
    v[i] =
        combine(__builtin_shufflevector(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
                __builtin_shufflevector(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31));
  TIGHTBEAM_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] = combine(__builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
                   __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31));
  TIGHTBEAM_UNROLL
  for (int i = 0; i < 2; ++i)
    v[i] = combine(__builtin_shufflevector(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                   __builtin_shufflevector(v[i], v[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
  return combine(__builtin_shufflevector(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
                 __builtin_shufflevector(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31));
#elif TIGHTBEAM_LANES == 8
  TIGHTBEAM_UNROLL
  for (int i = 0; i < 4; ++i)
    v[i] = combine(__builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11),
                   __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  TIGHTBEAM_UNROLL
  for (int i = 0; i < 2; ++i)
    v[i] = combine(__builtin_shufflevector(v[i], v[i + 2], 0, 1, 8, 9, 4, 5, 12, 13),
                   __builtin_shufflevector(v[i], v[i + 2], 2, 3, 10, 11, 6, 7, 14, 15));
  return combine(__builtin_shufflevector(v[0], v[1], 0, 8, 2, 10, 4, 12, 6, 14),
                 __builtin_shufflevector(v[0], v[1], 1, 9, 3, 11, 5, 13, 7, 15));
#else
  TIGHTBEAM_UNROLL
  for (int i = 0; i < 2; ++i)
    v[i] = combine(__builtin_shufflevector(v[i], v[i + 2], 0, 1, 4, 5),
                   __builtin_shufflevector(v[i], v[i + 2], 2, 3, 6, 7));
  return combine(__builtin_shufflevector(v[0], v[1], 0, 4, 2, 6), __builtin_shufflevector(v[0], v[1], 1, 5, 3, 7));
#endif
}

inline Vector sums_of(Vector* v) {
  return combined_lanes(v, [](Vector a, Vector b) { return a + b; });
}

// Lane i of the result is lane (i + BY) % LANES of the vector.
template <int BY>
inline Vector rotated_lanes(Vector v) {
#if TIGHTBEAM_LANES == 16
  return __builtin_shufflevector(v, v, BY, 1 + BY, 2 + BY, 3 + BY, 4 + BY, 5 + BY, 6 + BY, 7 + BY, 8 + BY, 9 + BY,
                                 10 + BY, 11 + BY, 12 + BY, 13 + BY, 14 + BY, 15 + BY);
#elif TIGHTBEAM_LANES == 8
  return __builtin_shufflevector(v, v, BY, 1 + BY, 2 + BY, 3 + BY, 4 + BY, 5 + BY, 6 + BY, 7 + BY);
#else
  return __builtin_shufflevector(v, v, BY, 1 + BY, 2 + BY, 3 + BY);
#endif
}

inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }

// Lane i of the result is the largest lane of v[i].
inline Vector largest_of(Vector* v) { return combined_lanes(v, larger); }

// The largest lane, found by halves.
inline float max_of_lanes(Vector v) {
#if TIGHTBEAM_LANES == 16
  v = larger(v, rotated_lanes<8>(v));
#endif
#if TIGHTBEAM_LANES >= 8
  v = larger(v, rotated_lanes<4>(v));
#endif
  v = larger(v, rotated_lanes<2>(v));
  return larger(v, rotated_lanes<1>(v))[0];
}

// Likewise.
inline float sum_of_lanes(Vector v) {
#if TIGHTBEAM_LANES == 16
  v += rotated_lanes<8>(v);
#endif
#if TIGHTBEAM_LANES >= 8
  v += rotated_lanes<4>(v);
#endif
  v += rotated_lanes<2>(v);
  return (v + rotated_lanes<1>(v))[0];
}

// True if a lane is not 0.
inline bool any_of(Integers lanes) {
  typedef long long Halves __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
  const Halves halves = (Halves)lanes;
  long long any = 0;
  for (int lane = 0; lane < LANES / 2; ++lane) any |= halves[lane];
  return any != 0;
}

constexpr float MAGIC = 12582912.0f;  // 1.5 x 2^23: adding it rounds to an integer in the low bits

// How many vectors of exponentials go side by side: one alone waits for each of its results.
constexpr int SIDE_BY_SIDE = REGISTERS == 32 ? 4 : 2;

// Each x becomes e^x for x <= 0, to 2 units in the last place; 0 below -87, and NaN for NaN. With x = n ln 2 + r, e^r
// is a polynomial of degree 6. Lanes that do not count may hold any x.
template <int COUNT>
inline void exponentials_of(Vector (&x)[COUNT]) {
  const Vector lowest = broadcast(-87.0f), magic = broadcast(MAGIC);
  const float factors[7] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  Vector shifted[COUNT], r[COUNT], p[COUNT];
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) shifted[i] = x[i] < lowest ? lowest : x[i];
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) {
    r[i] = shifted[i];
    shifted[i] = shifted[i] * 1.44269504f + magic;
  }
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) {
    const Vector n = shifted[i] - magic;
    r[i] = r[i] - n * 0.693359375f;
    r[i] = r[i] + n * 2.12194440e-4f;
    p[i] = broadcast(factors[0]);
  }
  TIGHTBEAM_UNROLL
  for (int power = 1; power < 7; ++power) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) p[i] = p[i] * r[i] + factors[power];
  }
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) {
    const Bits exponent = ((Bits)shifted[i]) << 23;  // the low bits of `shifted` are n
    const Vector result = (Vector)((Bits)p[i] + exponent);
    x[i] = x[i] != x[i] ? x[i] : x[i] < lowest ? broadcast(0.0f) : result;
  }
}

// exp(numbers[i] - shift) of COUNT whole vectors of numbers.
template <int COUNT>
inline void exponentials_from(const float* numbers, Vector shift, Vector (&to)[COUNT]) {
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) to[i] = load(numbers + i * LANES) - shift;
  exponentials_of(to);
}

inline Vector exponential(Vector x) {
  Vector one[1] = {x};
  exponentials_of(one);
  return one[0];
}

}  // namespace
}  // namespace tightbeam

#define TIGHTBEAM_TEXT_(x) #x
#define TIGHTBEAM_TEXT(x) TIGHTBEAM_TEXT_(x)
#define TIGHTBEAM_JOIN_(a, b) a##b
#define TIGHTBEAM_JOIN(a, b) TIGHTBEAM_JOIN_(a, b)
