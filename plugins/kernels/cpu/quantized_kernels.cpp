// Compiled once for each instruction set, like math_kernels.cpp, and under the same rule: nothing here may have external
// linkage but the table. (The compiler's own intrinsics have none.)
#include "kernels/cpu/quantized.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace tightbeam {
namespace {

constexpr int LANES = TIGHTBEAM_LANES;
constexpr int VECTORS = 2;                   // of columns that a row's sums are kept of
constexpr int COLUMNS = VECTORS * LANES;     // at once
constexpr int PARTS = TILE_COLUMNS / COLUMNS;
typedef float Vector __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef int Integers __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef unsigned Bits __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef short Shorts __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef unsigned short Words __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef signed char Bytes __attribute__((vector_size(TIGHTBEAM_LANES)));

#define TIGHTBEAM_UNROLL _Pragma("GCC unroll 16")

template <class V, class T>
inline V load(const T* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

template <class V, class T>
inline void store(T* to, V vector) {
  __builtin_memcpy(to, &vector, sizeof vector);
}

inline Vector load_some(const float* from, int count) {
  Vector vector = {};
  __builtin_memcpy(&vector, from, count * sizeof(float));
  return vector;
}

inline void store_some(float* to, Vector vector, int count) { __builtin_memcpy(to, &vector, count * sizeof(float)); }

inline Vector broadcast(float number) { return number - Vector{}; }

// ---- rows of floats to rows of integers ----

unsigned largest(const float* numbers, long count) {
  Bits best = {};
  long i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Bits magnitude = load<Bits>(numbers + i) & 0x7FFFFFFFu;
    best = magnitude > best ? magnitude : best;
  }
  unsigned result = 0;
  for (int lane = 0; lane < LANES; ++lane) result = best[lane] > result ? best[lane] : result;
  for (; i < count; ++i) {
    unsigned bits;
    __builtin_memcpy(&bits, numbers + i, sizeof bits);
    bits &= 0x7FFFFFFFu;
    result = bits > result ? bits : result;
  }
  return result;
}

constexpr float MAGIC = 12582912.0f;  // 1.5 x 2^23: adding it rounds to an integer in the low bits

void round(const float* numbers, long count, float factor, signed char* integers) {
  const Vector by = broadcast(factor), magic = broadcast(MAGIC);
  long i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Integers bits = (Integers)(load<Vector>(numbers + i) * by + magic);
    store(integers + i, __builtin_convertvector(bits << 24 >> 24, Bytes));
  }
  for (; i < count; ++i) {
    const float shifted = numbers[i] * factor + MAGIC;
    int bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    integers[i] = static_cast<signed char>(bits & 0xFF);
  }
}

// ---- products of integers ----

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define TIGHTBEAM_DOT 1
constexpr int MOST_ROWS = LANES == 16 ? 12 : 6;
typedef int Group;  // four bytes of a row

inline Group group_of(const signed char* integers) {
  int group;
  __builtin_memcpy(&group, integers, sizeof group);
  return group;
}

inline Integers add_dot(Integers sum, Integers weights, Integers numbers) {
#if TIGHTBEAM_LANES == 16
  return (Integers)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)numbers);
#else
  return (Integers)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)numbers);
#endif
}
#else
#define TIGHTBEAM_DOT 0
constexpr int MOST_ROWS = LANES == 16 ? 8 : LANES == 8 ? 4 : 2;

// The first and the third, the second and the fourth of four neighbours, as pairs of 16 bits.
struct Group {
  int even, odd;
};

inline Group group_of(const signed char* n) {
  return {static_cast<int>(static_cast<unsigned short>(n[0]) | static_cast<unsigned>(static_cast<unsigned short>(n[2])) << 16),
          static_cast<int>(static_cast<unsigned short>(n[1]) | static_cast<unsigned>(static_cast<unsigned short>(n[3])) << 16)};
}

// Sums of two neighbouring products each.
inline Integers pair_sums(Shorts a, Shorts b) {
#if TIGHTBEAM_LANES == 16
  return (Integers)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif TIGHTBEAM_LANES == 8
  return (Integers)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Integers)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const Integers x = (Integers)a, y = (Integers)b;
  return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}
#endif

template <int ROWS>
inline void multiply_rows(const Group* groups_of_rows, const int* corrections, const unsigned char* tile, long groups,
                          int* products, const unsigned char* next, long next_step) {
  for (int part = 0; part < PARTS; ++part, tile += COLUMNS * GROUP) {
    Integers sums[ROWS][VECTORS];
    TIGHTBEAM_UNROLL
    for (int row = 0; row < ROWS; ++row) {
      TIGHTBEAM_UNROLL
      for (int v = 0; v < VECTORS; ++v) sums[row][v] = corrections[row] - Integers{};
    }
    const Group* group = groups_of_rows;
    const unsigned char* weights = tile;
    for (long k = 0; k < groups; ++k, group += ROWS, weights += TILE_STEP) {
      __builtin_prefetch(next, 0, 2);
      next += next_step;
#if TIGHTBEAM_DOT
      Integers column[VECTORS];
      TIGHTBEAM_UNROLL
      for (int v = 0; v < VECTORS; ++v) column[v] = load<Integers>(weights + v * LANES * GROUP);
      TIGHTBEAM_UNROLL
      for (int row = 0; row < ROWS; ++row) {
        const Integers numbers = group[row] - Integers{};
        TIGHTBEAM_UNROLL
        for (int v = 0; v < VECTORS; ++v) sums[row][v] = add_dot(sums[row][v], column[v], numbers);
      }
#else
      Shorts even[VECTORS], odd[VECTORS];
      TIGHTBEAM_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        const Words both = load<Words>(weights + v * LANES * GROUP);
        even[v] = (Shorts)(both & 0xFF);
        odd[v] = (Shorts)(both >> 8);
      }
      TIGHTBEAM_UNROLL
      for (int row = 0; row < ROWS; ++row) {
        const Shorts evens = (Shorts)(group[row].even - Integers{}), odds = (Shorts)(group[row].odd - Integers{});
        TIGHTBEAM_UNROLL
        for (int v = 0; v < VECTORS; ++v)
          sums[row][v] += pair_sums(even[v], evens) + pair_sums(odd[v], odds);
      }
#endif
    }
    TIGHTBEAM_UNROLL
    for (int row = 0; row < ROWS; ++row) {
      TIGHTBEAM_UNROLL
      for (int v = 0; v < VECTORS; ++v) store(products + row * TILE_COLUMNS + part * COLUMNS + v * LANES, sums[row][v]);
    }
  }
}

template <int ROWS>
void multiply_up_to(int rows, const Group* packed, const int* sums, const unsigned char* tile, long groups,
                    int* products, const unsigned char* next, long next_step) {
  if (rows == ROWS) return multiply_rows<ROWS>(packed, sums, tile, groups, products, next, next_step);
  if constexpr (ROWS > 1) multiply_up_to<ROWS - 1>(rows, packed, sums, tile, groups, products, next, next_step);
}

void multiply(const void* packed, const int* sums, int rows, const unsigned char* tile, long groups, int* products,
              const unsigned char* next, long next_step) {
  multiply_up_to<MOST_ROWS>(rows, static_cast<const Group*>(packed), sums, tile, groups, products, next, next_step);
}

void pack(const signed char* integers, long stride, int rows, long groups, void* packed, int* sums) {
  Group* to = static_cast<Group*>(packed);
  for (int row = 0; row < rows; ++row) {
    const signed char* from = integers + row * stride;
    int sum = 0;
    for (long i = 0; i < groups * GROUP; ++i) sum += from[i];
    sums[row] = -128 * sum;
    for (long k = 0; k < groups; ++k) to[k * rows + row] = group_of(from + k * GROUP);
  }
}

// ---- integers to floats ----

void scale(const int* products, int columns, float row_scale, const float* scales, bool first, float* output) {
  const Vector by = broadcast(row_scale);
  for (int i = 0; i < columns; i += LANES) {
    const int left = columns - i;
    const Vector numbers = __builtin_convertvector(load<Integers>(products + i), Vector) * by;
    if (left >= LANES) {
      const Vector scaled = numbers * load<Vector>(scales + i);
      store(output + i, first ? scaled : load<Vector>(output + i) + scaled);
    } else {
      const Vector scaled = numbers * load_some(scales + i, left);
      store_some(output + i, first ? scaled : load_some(output + i, left) + scaled, left);
    }
  }
}

inline Vector activated(Vector numbers, int activation) {
  const Vector zero = {};
  if (activation == 1) return numbers < zero ? zero : numbers;
  return numbers;
}

void finish(float* output, int columns, const float* bias, int activation, const float* addend, float addend_of_all) {
  for (int i = 0; i < columns; i += LANES) {
    const int left = columns - i;
    if (left >= LANES) {
      const Vector numbers = activated(load<Vector>(output + i) + load<Vector>(bias + i), activation);
      store(output + i, numbers + (addend != nullptr ? load<Vector>(addend + i) : broadcast(addend_of_all)));
    } else {
      const Vector numbers = activated(load_some(output + i, left) + load_some(bias + i, left), activation);
      store_some(output + i, numbers + (addend != nullptr ? load_some(addend + i, left) : broadcast(addend_of_all)), left);
    }
  }
}

}  // namespace

#define TIGHTBEAM_TEXT_(x) #x
#define TIGHTBEAM_TEXT(x) TIGHTBEAM_TEXT_(x)
#define TIGHTBEAM_JOIN_(a, b) a##b
#define TIGHTBEAM_JOIN(a, b) TIGHTBEAM_JOIN_(a, b)

extern const Quantized TIGHTBEAM_JOIN(QUANTIZED_, TIGHTBEAM_ISA);
const Quantized TIGHTBEAM_JOIN(QUANTIZED_, TIGHTBEAM_ISA) = {
    TIGHTBEAM_TEXT(TIGHTBEAM_ISA), MOST_ROWS, sizeof(Group), largest, round, pack, multiply, scale, finish,
};

}  // namespace tightbeam
