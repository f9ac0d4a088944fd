// Compiled once for each instruction set, like math_kernels.cpp, and under the same rule: only the table may have
// external linkage. (The compiler's intrinsics have internal linkage.)
#include "kernels/cpu/quantized.h"
#include "kernels/cpu/vectors.h"

#ifdef __SSE2__
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace tightbeam {
namespace {

constexpr int PARTS = LANES == 4 && REGISTERS == 16 ? 2 : 1;  // of a tile, multiplied one after the other
constexpr int VECTORS = TILE_COLUMNS / LANES / PARTS;         // registers of a row's sums for a tile or its part
typedef short Shorts __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef unsigned short Words __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef signed char Bytes __attribute__((vector_size(TIGHTBEAM_LANES)));
typedef unsigned char UnsignedBytes __attribute__((vector_size(TIGHTBEAM_LANES)));

// ---- rows of floats to rows of integers ----

unsigned largest(const float* numbers, long count) {
  Bits best = {};
  long i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Bits magnitude = load_as<Bits>(numbers + i) & 0x7FFFFFFFu;
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

float largest_of_tiles(const float* numbers, long tiles, float* best) {
  const float nothing = -__builtin_inff();
  Vector largest = broadcast(nothing);
  Integers nan = {};
  const auto of_tile = [&](const float* from) {
    Vector found = load(from);
    nan |= found != found;
    TIGHTBEAM_UNROLL
    for (int i = LANES; i < TILE_COLUMNS; i += LANES) {
      const Vector next = load(from + i);
      nan |= next != next;
      found = larger(found, next);
    }
    return found;
  };
  long tile = 0;
  for (; tile + LANES <= tiles; tile += LANES) {  // as many as a vector has lanes
    Vector found[LANES];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < LANES; ++i) found[i] = of_tile(numbers + (tile + i) * TILE_COLUMNS);
    const Vector of_tiles = largest_of(found);
    store(best + tile, of_tiles);
    largest = larger(largest, of_tiles);
  }
  float result = max_of_lanes(largest);
  for (; tile < tiles; ++tile) {
    best[tile] = max_of_lanes(of_tile(numbers + tile * TILE_COLUMNS));
    result = best[tile] > result ? best[tile] : result;
  }
  return any_of(nan) ? __builtin_nanf("") : result;
}

void round(const float* numbers, long count, float factor, signed char* integers) {
  const Vector by = broadcast(factor), magic = broadcast(MAGIC);
  long i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Integers bits = (Integers)(load(numbers + i) * by + magic);
    store_as(integers + i, __builtin_convertvector(bits << 24 >> 24, Bytes));
  }
  for (; i < count; ++i) {
    const float shifted = numbers[i] * factor + MAGIC;
    int bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    integers[i] = static_cast<signed char>(bits & 0xFF);
  }
}

void split(const float* numbers, long count, float factor, signed char* high, signed char* low) {
  const Vector by = broadcast(factor), magic = broadcast(MAGIC);
  long i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Integers integers = (Integers)(load(numbers + i) * by + magic) - (Integers)magic;
    const Integers upper = (integers + 64) >> 7;
    store_as(high + i, __builtin_convertvector(upper, Bytes));
    store_as(low + i, __builtin_convertvector(integers - (upper << 7), Bytes));
  }
  for (; i < count; ++i) {
    const float shifted = numbers[i] * factor + MAGIC;
    int bits, zero;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    __builtin_memcpy(&zero, &MAGIC, sizeof zero);
    const int integer = bits - zero, upper = (integer + 64) >> 7;
    high[i] = static_cast<signed char>(upper);
    low[i] = static_cast<signed char>(integer - upper * 128);
  }
}

// ---- products of integers ----

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
#define TIGHTBEAM_DOT 1
constexpr int ROWS_OF_ONE = LANES == 16 ? 12 : 6, ROWS_OF_TWO = LANES == 16 ? 12 : 0;
constexpr int INT4_ROWS = LANES == 16 ? 8 : 4;
typedef int Group;  // four bytes of a row
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define TIGHTBEAM_SIGNED 1  // a dot product is of signed bytes alone
#endif

inline Group group_of(const signed char* integers) {
  int group;
  __builtin_memcpy(&group, integers, sizeof group);
  return group;
}

inline Integers add_dot(Integers sum, Integers weights, Integers numbers) {
#ifdef __ARM_FEATURE_MATMUL_INT8
  return (Integers)vusdotq_s32((int32x4_t)sum, (uint8x16_t)weights, (int8x16_t)numbers);
#elif defined(TIGHTBEAM_SIGNED)
  return (Integers)vdotq_s32((int32x4_t)sum, (int8x16_t)weights, (int8x16_t)numbers);
#elif TIGHTBEAM_LANES == 16
  return (Integers)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)numbers);
#else
  return (Integers)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)numbers);
#endif
}
#else
#define TIGHTBEAM_DOT 0
constexpr int ROWS_OF_ONE = LANES == 16 ? 16 : LANES == 8 || REGISTERS == 32 ? 4 : 2;
constexpr int ROWS_OF_TWO = LANES == 16 ? 10 : 0;
constexpr int INT4_ROWS = LANES == 16 ? 6 : 2;

// Four neighbours as pairs of 16 bits: the first and the third, the second and the fourth.
struct Group {
  int even, odd;
};

inline Group group_of(const signed char* n) {
  return {static_cast<int>(static_cast<unsigned short>(n[0]) | static_cast<unsigned>(static_cast<unsigned short>(n[2]))
                                                                   << 16),
          static_cast<int>(static_cast<unsigned short>(n[1]) | static_cast<unsigned>(static_cast<unsigned short>(n[3]))
                                                                   << 16)};
}

// The sums of pairs of neighbouring products.
inline Integers pair_sums(Shorts a, Shorts b) {
#if TIGHTBEAM_LANES == 16
  return (Integers)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif TIGHTBEAM_LANES == 8
  return (Integers)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Integers)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__ARM_NEON)
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return (Integers)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  const Integers x = (Integers)a, y = (Integers)b;
  return (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
}
#endif

// Adds the products of a group of each row and the weights of its numbers, a vector of columns for each sum.
template <int ROWS, int SUMS>
inline void add_products(Integers (&sums)[ROWS][SUMS], const Integers (&column)[SUMS], const Group* group) {
#if TIGHTBEAM_DOT
  TIGHTBEAM_UNROLL
  for (int row = 0; row < ROWS; ++row) {
    const Integers numbers = group[row] - Integers{};
    TIGHTBEAM_UNROLL
    for (int i = 0; i < SUMS; ++i) sums[row][i] = add_dot(sums[row][i], column[i], numbers);
  }
#else
  Shorts even[SUMS], odd[SUMS];
  TIGHTBEAM_UNROLL
  for (int i = 0; i < SUMS; ++i) {
    even[i] = (Shorts)((Words)column[i] & 0xFF);
    odd[i] = (Shorts)((Words)column[i] >> 8);
  }
  TIGHTBEAM_UNROLL
  for (int row = 0; row < ROWS; ++row) {
    const Shorts evens = (Shorts)(group[row].even - Integers{}), odds = (Shorts)(group[row].odd - Integers{});
    TIGHTBEAM_UNROLL
    for (int i = 0; i < SUMS; ++i) sums[row][i] += pair_sums(even[i], evens) + pair_sums(odd[i], odds);
  }
#endif
}

// The weights of a vector of columns, as `add_products` takes them.
inline Integers load_weights(const unsigned char* weights) {
#ifdef TIGHTBEAM_SIGNED
  return (Integers)(load_as<Bits>(weights) ^ 0x80808080u);
#else
  return load_as<Integers>(weights);
#endif
}

#ifdef __ARM_FEATURE_MATMUL_INT8
constexpr bool PAIRED = true;

// An instruction multiplies 8 numbers of two rows by the weights of two columns. For it, of the sums of 4 columns,
// those of rows 2 r and 2 r + 1 are interleaved. A row without a neighbour stays as it is.
template <int ROWS, int SUMS>
inline void pair_rows(Integers (&sums)[ROWS][SUMS]) {
  TIGHTBEAM_UNROLL
  for (int row = 0; row + 1 < ROWS; row += 2) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < SUMS; ++i) {
      const Integers a = sums[row][i], b = sums[row + 1][i];
      sums[row][i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      sums[row + 1][i] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    }
  }
}

template <int ROWS, int SUMS>
inline void unpair_rows(Integers (&sums)[ROWS][SUMS]) {
  TIGHTBEAM_UNROLL
  for (int row = 0; row + 1 < ROWS; row += 2) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < SUMS; ++i) {
      const Integers a = sums[row][i], b = sums[row + 1][i];
      sums[row][i] = __builtin_shufflevector(a, b, 0, 2, 4, 6);
      sums[row + 1][i] = __builtin_shufflevector(a, b, 1, 3, 5, 7);
    }
  }
}

// Adds the products of two groups to sums of paired rows.
template <int ROWS, int SUMS>
inline void add_two_products(Integers (&sums)[ROWS][SUMS], const Integers (&column)[SUMS],
                             const Integers (&next_column)[SUMS], const Group* group, const Group* next_group) {
  typedef int Two __attribute__((vector_size(8)));
  Integers numbers[ROWS / 2 + 1];  // 8 of a row, then 8 of the other
  TIGHTBEAM_UNROLL
  for (int row = 0; row + 1 < ROWS; row += 2)
    numbers[row / 2] = __builtin_shufflevector(load_as<Two>(group + row), load_as<Two>(next_group + row), 0, 2, 1, 3);
  TIGHTBEAM_UNROLL
  for (int i = 0; i < SUMS; ++i) {
    const uint8x16_t first = (uint8x16_t)__builtin_shufflevector(column[i], next_column[i], 0, 4, 1, 5),
                     last = (uint8x16_t)__builtin_shufflevector(column[i], next_column[i], 2, 6, 3, 7);
    TIGHTBEAM_UNROLL
    for (int row = 0; row + 1 < ROWS; row += 2) {
      const int8x16_t two = (int8x16_t)numbers[row / 2];
      sums[row][i] = (Integers)vusmmlaq_s32((int32x4_t)sums[row][i], first, two);
      sums[row + 1][i] = (Integers)vusmmlaq_s32((int32x4_t)sums[row + 1][i], last, two);
    }
  }
  if constexpr (ROWS % 2 == 1) {
    const Integers numbers_of_last = group[ROWS - 1] - Integers{}, next = next_group[ROWS - 1] - Integers{};
    TIGHTBEAM_UNROLL
    for (int i = 0; i < SUMS; ++i)
      sums[ROWS - 1][i] = add_dot(add_dot(sums[ROWS - 1][i], column[i], numbers_of_last), next_column[i], next);
  }
}
#else
constexpr bool PAIRED = false;

template <int ROWS, int SUMS>
inline void pair_rows(Integers (&)[ROWS][SUMS]) {}

template <int ROWS, int SUMS>
inline void unpair_rows(Integers (&)[ROWS][SUMS]) {}

template <int ROWS, int SUMS>
inline void add_two_products(Integers (&sums)[ROWS][SUMS], const Integers (&column)[SUMS],
                             const Integers (&next_column)[SUMS], const Group* group, const Group* next_group) {
  add_products(sums, column, group);
  add_products(sums, next_column, next_group);
}
#endif

template <int ROWS, int TILES>
void multiply_rows(const Multiplication& m) {
  constexpr int SUMS = TILES * VECTORS;  // of a row
  for (int part = 0; part < PARTS; ++part) {
    const unsigned char* weights = m.weights + part * VECTORS * LANES * GROUP;
    const unsigned char* next = m.next;
    const Group* group = static_cast<const Group*>(m.packed);
    Integers sums[ROWS][SUMS];
    TIGHTBEAM_UNROLL
    for (int row = 0; row < ROWS; ++row) {
      TIGHTBEAM_UNROLL
      for (int i = 0; i < SUMS; ++i) {
        const int* products = m.products + (row * SUMS * PARTS + part * VECTORS + i) * LANES;
        sums[row][i] = m.start != nullptr ? m.start[row] - Integers{} : load_as<Integers>(products);
      }
    }
    const auto load_columns = [&](Integers(&column)[SUMS]) {
      TIGHTBEAM_UNROLL
      for (int tile = 0; tile < TILES; ++tile) __builtin_prefetch(next + tile * m.tile_bytes, 0, 3);
      next += m.next_step;
      TIGHTBEAM_UNROLL
      for (int i = 0; i < SUMS; ++i)
        column[i] = load_weights(weights + i / VECTORS * m.tile_bytes + i % VECTORS * LANES * GROUP);
      weights += TILE_STEP;
    };
    long k = 0;
    if constexpr (PAIRED) {
      pair_rows(sums);
      for (; k + 2 <= m.groups; k += 2, group += 2 * ROWS) {
        Integers column[SUMS], next_column[SUMS];
        load_columns(column);
        load_columns(next_column);
        add_two_products(sums, column, next_column, group, group + ROWS);
      }
      unpair_rows(sums);
    }
    for (; k < m.groups; ++k, group += ROWS) {
      Integers column[SUMS];
      load_columns(column);
      add_products(sums, column, group);
    }
    TIGHTBEAM_UNROLL
    for (int row = 0; row < ROWS; ++row) {
      TIGHTBEAM_UNROLL
      for (int i = 0; i < SUMS; ++i)
        store_as(m.products + (row * SUMS * PARTS + part * VECTORS + i) * LANES, sums[row][i]);
    }
  }
}

// The sums of a block of 32 numbers are exact integers below 2^24. Each is then scaled and added to a float.
template <int ROWS, int TILES>
void multiply_int4_rows(const Multiplication& m) {
  constexpr int SUMS = TILES * VECTORS, PAIRS = ROWS / 2;
  for (int part = 0; part < PARTS; ++part) {
    const unsigned char* weights = m.weights + part * VECTORS * LANES * GROUP;
    const unsigned char* scales = m.block_scale + part * VECTORS * LANES;
    const unsigned char* next = m.next;
    const Group* group = static_cast<const Group*>(m.packed);
    const int* corrections = m.corrections;
    Vector totals[PAIRS][SUMS];
    TIGHTBEAM_UNROLL
    for (int pair = 0; pair < PAIRS; ++pair) {
      TIGHTBEAM_UNROLL
      for (int i = 0; i < SUMS; ++i) {
        const int* products = m.products + (pair * SUMS * PARTS + part * VECTORS + i) * LANES;
        totals[pair][i] = m.start != nullptr ? Vector{} : load_as<Vector>(products);
      }
    }
    for (long k = 0; k < m.groups; k += INT4_GROUPS) {
      Integers sums[ROWS][SUMS];
      TIGHTBEAM_UNROLL
      for (int pair = 0; pair < PAIRS; ++pair) {
        TIGHTBEAM_UNROLL
        for (int i = 0; i < SUMS; ++i) {
          sums[2 * pair][i] = Integers{};
          sums[2 * pair + 1][i] = corrections[pair] - Integers{};
        }
      }
      pair_rows(sums);
      for (int two = 0; two < INT4_GROUPS; two += 2, group += 2 * ROWS, weights += TILE_STEP) {
        TIGHTBEAM_UNROLL
        for (int tile = 0; tile < TILES; ++tile) __builtin_prefetch(next + tile * m.tile_bytes, 0, 3);
        next += m.next_step;
        Integers low[SUMS], high[SUMS];
        TIGHTBEAM_UNROLL
        for (int i = 0; i < SUMS; ++i) {
          const Integers both = load_as<Integers>(weights + i / VECTORS * m.tile_bytes + i % VECTORS * LANES * GROUP);
          low[i] = both & 0x0F0F0F0F;
          high[i] = both >> 4 & 0x0F0F0F0F;
        }
        add_two_products(sums, low, high, group, group + ROWS);
      }
      unpair_rows(sums);
      TIGHTBEAM_UNROLL
      for (int i = 0; i < SUMS; ++i) {
        const unsigned char* scale = scales + i / VECTORS * m.block_scale_step + i % VECTORS * LANES;
        const Integers integers = __builtin_convertvector(load_as<UnsignedBytes>(scale), Integers);
        const Vector by = __builtin_convertvector(integers, Vector);
        TIGHTBEAM_UNROLL
        for (int pair = 0; pair < PAIRS; ++pair)
          totals[pair][i] += __builtin_convertvector((sums[2 * pair][i] << 7) + sums[2 * pair + 1][i], Vector) * by;
      }
      scales += TILE_COLUMNS;
      corrections += m.corrections_step;
    }
    TIGHTBEAM_UNROLL
    for (int pair = 0; pair < PAIRS; ++pair) {
      TIGHTBEAM_UNROLL
      for (int i = 0; i < SUMS; ++i)
        store_as(m.products + (pair * SUMS * PARTS + part * VECTORS + i) * LANES, totals[pair][i]);
    }
  }
}

typedef void (*MultiplyRows)(const Multiplication&);

template <int TILES, int ROWS>
struct Choices : Choices<TILES, ROWS - 1> {
  constexpr Choices() { this->of[ROWS] = multiply_rows<ROWS, TILES>; }
};
template <int TILES>
struct Choices<TILES, 0> {
  MultiplyRows of[25] = {};
};
constexpr Choices<1, ROWS_OF_ONE> BY_ONE;
constexpr Choices<2, ROWS_OF_TWO> BY_TWO;

// The same of weights of 4 bits, by pairs of rows.
template <int TILES, int PAIRS>
struct Int4Choices : Int4Choices<TILES, PAIRS - 1> {
  constexpr Int4Choices() { this->of[PAIRS] = multiply_int4_rows<2 * PAIRS, TILES>; }
};
template <int TILES>
struct Int4Choices<TILES, 0> {
  MultiplyRows of[13] = {};
};
constexpr Int4Choices<1, INT4_ROWS / 2> INT4_BY_ONE;
constexpr Int4Choices<2, ROWS_OF_TWO == 0 ? 0 : INT4_ROWS / 2> INT4_BY_TWO;

void multiply(const Multiplication& m) { (m.tiles == 1 ? BY_ONE.of : BY_TWO.of)[m.rows](m); }

void multiply_int4(const Multiplication& m) { (m.tiles == 1 ? INT4_BY_ONE.of : INT4_BY_TWO.of)[m.rows / 2](m); }

void int4_corrections(const signed char* high, const signed char* low, long blocks, int* corrections, long step) {
  for (long block = 0; block < blocks; ++block, corrections += step) {
    Integers sums = {};
    for (int i = 0; i < INT4_BLOCK; i += LANES, high += LANES, low += LANES)
      sums += (__builtin_convertvector(load_as<Bytes>(high), Integers) << 7) +
              __builtin_convertvector(load_as<Bytes>(low), Integers);
    int sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
    *corrections = -8 * sum;
  }
}

#ifdef TIGHTBEAM_SIGNED
int correction(const signed char*, long) { return 0; }
#else
int correction(const signed char* integers, long count) {
  Integers sums = {};
  long i = 0;
#if TIGHTBEAM_DOT
  for (; i + 4 * LANES <= count; i += 4 * LANES)
    sums = add_dot(sums, 0x01010101 - Integers{}, load_as<Integers>(integers + i));
#else
  const Shorts ones = 1 - Shorts{};
  for (; i + 4 * LANES <= count; i += 4 * LANES) {
    const Shorts both = load_as<Shorts>(integers + i);
    sums += pair_sums(both << 8 >> 8, ones) + pair_sums(both >> 8, ones);
  }
#endif
  int sum = 0;
  for (int lane = 0; lane < LANES; ++lane) sum += sums[lane];
  for (; i < count; ++i) sum += integers[i];
  return -128 * sum;
}
#endif

void pack(const signed char* integers, long width, int rows, long groups, void* packed) {
  Group* to = static_cast<Group*>(packed);
  int row = 0;
#if TIGHTBEAM_DOT
  typedef int Four __attribute__((vector_size(16)));
  for (; row + 4 <= rows; row += 4) {  // transposes 4 x 4 groups at a time
    const signed char* from = integers + row * width;
    long k = 0;
#if TIGHTBEAM_LANES == 16
    for (; k + 16 <= groups; k += 16) {  // four blocks of 4 x 4
      const Integers a = load_as<Integers>(from + k * GROUP), b = load_as<Integers>(from + width + k * GROUP),
                     c = load_as<Integers>(from + 2 * width + k * GROUP),
                     d = load_as<Integers>(from + 3 * width + k * GROUP);
      const Integers ab = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
                     cd = __builtin_shufflevector(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
                     AB = __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31),
                     CD = __builtin_shufflevector(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
      const Integers fours[4] = {
          __builtin_shufflevector(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
          __builtin_shufflevector(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31),
          __builtin_shufflevector(AB, CD, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
          __builtin_shufflevector(AB, CD, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)};
      TIGHTBEAM_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Integers four = fours[i];
        store_as(to + (k + i) * rows + row, __builtin_shufflevector(four, four, 0, 1, 2, 3));
        store_as(to + (k + 4 + i) * rows + row, __builtin_shufflevector(four, four, 4, 5, 6, 7));
        store_as(to + (k + 8 + i) * rows + row, __builtin_shufflevector(four, four, 8, 9, 10, 11));
        store_as(to + (k + 12 + i) * rows + row, __builtin_shufflevector(four, four, 12, 13, 14, 15));
      }
    }
#endif
    for (; k + 4 <= groups; k += 4) {
      const Columns<Four> columns =
          columns_of(load_as<Four>(from + k * GROUP), load_as<Four>(from + width + k * GROUP),
                     load_as<Four>(from + 2 * width + k * GROUP), load_as<Four>(from + 3 * width + k * GROUP));
      for (int i = 0; i < 4; ++i) store_as(to + (k + i) * rows + row, columns.of[i]);
    }
    for (; k < groups; ++k)
      for (int i = 0; i < 4; ++i) to[k * rows + row + i] = group_of(from + i * width + k * GROUP);
  }
#endif
  for (; row < rows; ++row)
    for (long k = 0; k < groups; ++k) to[k * rows + row] = group_of(integers + row * width + k * GROUP);
}

// ---- integers to floats ----

// |x| times the normal distribution function of -|x|, to 3e-8. It is a polynomial in |x| around each multiple of 0.4:
// GELU_POWERS[i][j] is the coefficient of (2.5 |x| - j)^i, with j the nearest integer to 2.5 |x|. From 5.8 on it is 0.
constexpr float GELU_STEPS = 2.5f;
constexpr float GELU_LAST = 15.0f;
constexpr float GELU_POWERS[6][16] = {
    {0.0f, 0.137831286f, 0.169484332f, 0.138083622f, 0.087678872f, 0.0455002636f, 0.0196740814f, 0.00715436228f,
     0.00219884072f, 0.000572791148f, 0.000126685263f, 2.3815348e-05f, 3.80802953e-06f, 5.18164427e-07f,
     6.00214349e-08f, 0.0f},
    {0.2f, 0.0789080858f, -0.00795913022f, -0.0471814387f, -0.0490696207f, -0.0340927243f, -0.0182197355f,
     -0.00784325227f, -0.00277677691f, -0.000817495165f, -0.000201459916f, -4.17338015e-05f, -7.28839586e-06f,
     -1.07524806e-06f, -1.34206147e-07f, 0.0f},
    {-0.0638302267f, -0.0542086139f, -0.0315189175f, -0.00870050862f, 0.00496871118f, 0.00863861665f, 0.00673655886f,
     0.00369828823f, 0.00157163909f, 0.000536499836f, 0.000149868589f, 3.46289562e-05f, 6.66374945e-06f, 1.0728977e-06f,
     1.45007192e-07f, 0.0f},
    {-6.00857402e-06f, 0.00603347272f, 0.00830581039f, 0.00636310037f, 0.00272613741f, 9.9569661e-08f, -0.00100900407f,
     -0.000907841953f, -0.000507815508f, -0.000210539292f, -6.85193663e-05f, -1.79787567e-05f, -3.86061947e-06f,
     -6.84781014e-07f, -1.00963661e-07f, 0.0f},
    {0.00172972423f, 0.00113336626f, -1.66420105e-05f, -0.000819450186f, -0.000865774928f, -0.000461389165f,
     -7.8102159e-05f, 8.73557219e-05f, 9.40313475e-05f, 5.31954975e-05f, 2.13544517e-05f, 6.59162606e-06f,
     1.62005415e-06f, 3.23055701e-07f, 5.28752402e-08f, 0.0f},
    {-5.54838516e-05f, -0.000202335534f, -0.000223038369f, -8.4277417e-05f, 5.34377905e-05f, 9.1347516e-05f,
     5.58433967e-05f, 1.30900989e-05f, -6.46150238e-06f, -8.11167683e-06f, -4.49046547e-06f, -1.70169346e-06f,
     -4.8765736e-07f, -1.10121746e-07f, -2.00269525e-08f, 0.0f},
};

// Looks up table[index & 15] for each lane's index.
inline Vector look_up(const float (&table)[16], Integers index) {
#if TIGHTBEAM_LANES == 16
  return (Vector)_mm512_maskz_permutexvar_ps(0xFFFF, (__m512i)index, (__m512)load(table));
#elif TIGHTBEAM_LANES == 8
  return (Vector)_mm256_i32gather_ps(table, (__m256i)(index & 15), sizeof(float));
#elif defined(__ARM_NEON)
  const uint8x16x4_t bytes = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(table));
  return (Vector)vqtbl4q_u8(bytes, (uint8x16_t)((index & 15) * 0x04040404 + 0x03020100));
#else
  Vector found;
  for (int lane = 0; lane < LANES; ++lane) found[lane] = table[index[lane] & 15];
  return found;
#endif
}

// The activations of several vectors side by side: one alone would wait for each of its results.
template <int COUNT>
inline void gelu(Vector (&x)[COUNT]) {
  const Vector zero = {}, last = broadcast(GELU_LAST), magic = broadcast(MAGIC);
  Vector shifted[COUNT], rest[COUNT], tail[COUNT];
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) {
    const Vector steps = (Vector)((Bits)x[i] & 0x7FFFFFFFu) * GELU_STEPS;
    const Vector bounded = steps < last ? steps : last;
    shifted[i] = bounded + magic;  // its low bits are the nearest integer
    rest[i] = bounded - (shifted[i] - magic);
    tail[i] = look_up(GELU_POWERS[5], (Integers)shifted[i]);
  }
  TIGHTBEAM_UNROLL
  for (int power = 4; power >= 0; --power) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) tail[i] = tail[i] * rest[i] + look_up(GELU_POWERS[power], (Integers)shifted[i]);
  }
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) x[i] = (x[i] < zero ? zero : x[i]) - tail[i];
}

// x / (1 + e^-s)
template <int COUNT>
inline void gate(Vector (&x)[COUNT], const Vector (&s)[COUNT]) {
  const Vector zero = {}, one = broadcast(1.0f);
  Vector e[COUNT];
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) e[i] = s[i] < zero ? s[i] : -s[i];
  exponentials_of(e);
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) x[i] = x[i] * (s[i] < zero ? e[i] : one) / (one + e[i]);
}

template <int ACTIVATION, int COUNT>
inline void activate(Vector (&x)[COUNT]) {
  if constexpr (ACTIVATION == 1) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) x[i] = x[i] < Vector{} ? Vector{} : x[i];
  }
  if constexpr (ACTIVATION == 2) gelu(x);
  if constexpr (ACTIVATION == 3) gate(x, x);
  if constexpr (ACTIVATION == 4) {
    Vector s[COUNT];
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) s[i] = 1.59576912f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
    gate(x, s);
  }
}

// The sums of a vector of columns; those of the low digits are `stride` behind those of the high ones.
template <int DIGITS>
inline Vector sums_of(const int* products, long stride) {
  if constexpr (DIGITS == 0) return load_as<Vector>(products);
  const Vector sums = __builtin_convertvector(load_as<Integers>(products), Vector);
  if constexpr (DIGITS == 1) return sums;
  return sums * 128.0f + __builtin_convertvector(load_as<Integers>(products + stride), Vector);
}

// The end of HEIGHT rows of a product of one block, for COUNT whole vectors of columns from `first` on.
template <int ACTIVATION, int DIGITS, int COUNT, int HEIGHT>
inline void scale_rows(const Scaling& s, const Vector (&scales)[COUNT], const Vector (&bias)[COUNT], int first,
                       int row) {
  constexpr int ROWS = DIGITS == 0 ? 1 : DIGITS;  // of sums, for a row of products
  Vector numbers[HEIGHT * COUNT];
  TIGHTBEAM_UNROLL
  for (int i = 0; i < HEIGHT * COUNT; ++i) {
    const int own = row + i / COUNT, vector = i % COUNT;
    const int* products = s.products + own * ROWS * s.stride + first + vector * LANES;
    numbers[i] = sums_of<DIGITS>(products, s.stride) * broadcast(s.row_scale[own * s.row_scale_step]) * scales[vector] +
                 bias[vector];
  }
  activate<ACTIVATION>(numbers);
  TIGHTBEAM_UNROLL
  for (int i = 0; i < HEIGHT * COUNT; ++i) {
    const long at = (row + i / COUNT) * s.output_step + first + i % COUNT * LANES;
    store(s.output + at, numbers[i] + (s.addend == nullptr ? broadcast(s.addend_of_all) : load(s.addend + at)));
  }
}

template <int ACTIVATION, int DIGITS, int COUNT>
void scale_whole(const Scaling& s, int first) {
  constexpr int HEIGHT = COUNT < SIDE_BY_SIDE ? SIDE_BY_SIDE / COUNT : 1;
  Vector scales[COUNT], bias[COUNT];
  TIGHTBEAM_UNROLL
  for (int i = 0; i < COUNT; ++i) {
    scales[i] = load(s.scale + first + i * LANES);
    bias[i] = load(s.bias + first + i * LANES);
  }
  int row = 0;
  for (; row + HEIGHT <= s.rows; row += HEIGHT)
    scale_rows<ACTIVATION, DIGITS, COUNT, HEIGHT>(s, scales, bias, first, row);
  for (; row < s.rows; ++row) scale_rows<ACTIVATION, DIGITS, COUNT, 1>(s, scales, bias, first, row);
}

// The end of a product for one of several blocks, or for fewer columns than a vector has lanes.
template <int ACTIVATION, int DIGITS>
void scale_some(const Scaling& s, int first, int count) {
  constexpr int ROWS = DIGITS == 0 ? 1 : DIGITS;
  const Vector scales = load_some(s.scale + first, count), bias = load_some(s.bias + first, count);
  for (int row = 0; row < s.rows; ++row) {
    float* output = s.output + row * s.output_step + first;
    const Vector sums = sums_of<DIGITS>(s.products + row * ROWS * s.stride + first, s.stride);
    Vector numbers = sums * broadcast(s.row_scale[row * s.row_scale_step]) * scales;
    if (!s.first) numbers = load_some(output, count) + numbers;
    if (s.last) {
      Vector one[1] = {numbers + bias};
      activate<ACTIVATION>(one);
      numbers = one[0];
      numbers +=
          s.addend == nullptr ? broadcast(s.addend_of_all) : load_some(s.addend + row * s.output_step + first, count);
    }
    store_some(output, numbers, count);
  }
}

template <int ACTIVATION, int DIGITS>
void scale_with(const Scaling& s) {
  constexpr int COUNT = 2;
  int first = 0;
  if (s.first && s.last)
    for (; first + COUNT * LANES <= s.columns; first += COUNT * LANES) scale_whole<ACTIVATION, DIGITS, COUNT>(s, first);
  for (; first < s.columns; first += LANES) {
    const int left = s.columns - first;
    scale_some<ACTIVATION, DIGITS>(s, first, left < LANES ? left : LANES);
  }
}

template <int DIGITS>
void scale_by_activation(const Scaling& scaling) {
  const Scaling s = scaling;  // a copy, so that the compiler knows that no store changes it
  if (s.activation == 1) return scale_with<1, DIGITS>(s);
  if (s.activation == 2) return scale_with<2, DIGITS>(s);
  if (s.activation == 3) return scale_with<3, DIGITS>(s);
  if (s.activation == 4) return scale_with<4, DIGITS>(s);
  scale_with<0, DIGITS>(s);
}

void scale(const Scaling& scaling) {
  if (scaling.digits == 0) return scale_by_activation<0>(scaling);
  if (scaling.digits == 2) return scale_by_activation<2>(scaling);
  scale_by_activation<1>(scaling);
}

}  // namespace

extern const Quantized TIGHTBEAM_JOIN(QUANTIZED_, TIGHTBEAM_ISA);
const Quantized TIGHTBEAM_JOIN(QUANTIZED_, TIGHTBEAM_ISA) = {
    TIGHTBEAM_TEXT(TIGHTBEAM_ISA),
    ROWS_OF_ONE,
    ROWS_OF_TWO,
    INT4_ROWS,
    sizeof(Group),
    1,
    largest,
    round,
    split,
    pack,
    correction,
    int4_corrections,
    multiply,
    multiply_int4,
    scale,
    largest_of_tiles,
};

}  // namespace tightbeam
