// Compiled once for each instruction set, like math_kernels.cpp, and under the same rule: nothing here may have
// external linkage but the table. (The compiler's own intrinsics have none.)
#include "kernels/cpu/quantized.h"
#include "kernels/cpu/vectors.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace tightbeam {
namespace {

constexpr int PARTS = LANES == 4 ? 2 : 1;              // of a tile, one after the other
constexpr int VECTORS = TILE_COLUMNS / LANES / PARTS;  // of a row's sums, of a tile or its part
typedef short Shorts __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef unsigned short Words __attribute__((vector_size(4 * TIGHTBEAM_LANES)));
typedef signed char Bytes __attribute__((vector_size(TIGHTBEAM_LANES)));

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

constexpr float MAGIC = 12582912.0f;  // 1.5 x 2^23: adding it rounds to an integer in the low bits

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

// ---- products of integers ----

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define TIGHTBEAM_DOT 1
constexpr int ROWS_OF_ONE = LANES == 16 ? 12 : 6, ROWS_OF_TWO = LANES == 16 ? 12 : 0;
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
constexpr int ROWS_OF_ONE = LANES == 16 ? 16 : LANES == 8 ? 4 : 2, ROWS_OF_TWO = LANES == 16 ? 10 : 0;

// The first and the third, the second and the fourth of four neighbours, as pairs of 16 bits.
struct Group {
  int even, odd;
};

inline Group group_of(const signed char* n) {
  return {static_cast<int>(static_cast<unsigned short>(n[0]) | static_cast<unsigned>(static_cast<unsigned short>(n[2]))
                                                                   << 16),
          static_cast<int>(static_cast<unsigned short>(n[1]) | static_cast<unsigned>(static_cast<unsigned short>(n[3]))
                                                                   << 16)};
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
    for (long k = 0; k < m.groups; ++k, group += ROWS, weights += TILE_STEP) {
      TIGHTBEAM_UNROLL
      for (int tile = 0; tile < TILES; ++tile) __builtin_prefetch(next + tile * m.tile_bytes, 0, 3);
      next += m.next_step;
#if TIGHTBEAM_DOT
      Integers column[SUMS];
      TIGHTBEAM_UNROLL
      for (int i = 0; i < SUMS; ++i)
        column[i] = load_as<Integers>(weights + i / VECTORS * m.tile_bytes + i % VECTORS * LANES * GROUP);
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
        const Words both = load_as<Words>(weights + i / VECTORS * m.tile_bytes + i % VECTORS * LANES * GROUP);
        even[i] = (Shorts)(both & 0xFF);
        odd[i] = (Shorts)(both >> 8);
      }
      TIGHTBEAM_UNROLL
      for (int row = 0; row < ROWS; ++row) {
        const Shorts evens = (Shorts)(group[row].even - Integers{}), odds = (Shorts)(group[row].odd - Integers{});
        TIGHTBEAM_UNROLL
        for (int i = 0; i < SUMS; ++i) sums[row][i] += pair_sums(even[i], evens) + pair_sums(odd[i], odds);
      }
#endif
    }
    TIGHTBEAM_UNROLL
    for (int row = 0; row < ROWS; ++row) {
      TIGHTBEAM_UNROLL
      for (int i = 0; i < SUMS; ++i)
        store_as(m.products + (row * SUMS * PARTS + part * VECTORS + i) * LANES, sums[row][i]);
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

void multiply(const Multiplication& m) { (m.tiles == 1 ? BY_ONE.of : BY_TWO.of)[m.rows](m); }

int correction(const signed char* integers, long count) {
  int sum = 0;
  for (long i = 0; i < count; ++i) sum += integers[i];
  return -128 * sum;
}

void pack(const signed char* integers, long width, int rows, long groups, void* packed) {
  Group* to = static_cast<Group*>(packed);
  int row = 0;
#if TIGHTBEAM_DOT
  typedef int Four __attribute__((vector_size(16)));
  for (; row + 4 <= rows; row += 4) {  // 4 x 4 groups at a time, transposed
    const signed char* from = integers + row * width;
    long k = 0;
    for (; k + 4 <= groups; k += 4) {
      const Four a = load_as<Four>(from + k * GROUP), b = load_as<Four>(from + width + k * GROUP),
                 c = load_as<Four>(from + 2 * width + k * GROUP), d = load_as<Four>(from + 3 * width + k * GROUP);
      const Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5),
                 AB = __builtin_shufflevector(a, b, 2, 6, 3, 7), CD = __builtin_shufflevector(c, d, 2, 6, 3, 7);
      store_as(to + k * rows + row, __builtin_shufflevector(ab, cd, 0, 1, 4, 5));
      store_as(to + (k + 1) * rows + row, __builtin_shufflevector(ab, cd, 2, 3, 6, 7));
      store_as(to + (k + 2) * rows + row, __builtin_shufflevector(AB, CD, 0, 1, 4, 5));
      store_as(to + (k + 3) * rows + row, __builtin_shufflevector(AB, CD, 2, 3, 6, 7));
    }
    for (; k < groups; ++k)
      for (int i = 0; i < 4; ++i) to[k * rows + row + i] = group_of(from + i * width + k * GROUP);
  }
#endif
  for (; row < rows; ++row)
    for (long k = 0; k < groups; ++k) to[k * rows + row] = group_of(integers + row * width + k * GROUP);
}

// ---- integers to floats ----

// x times the normal distribution of x, to 1e-7: the distribution of -|x| is e^(-x^2 / 2) times a polynomial in
// 1 / (1 + 0.3 |x|), fitted where the product with x is not negligible.
inline Vector gelu(Vector x) {
  const Vector zero = {}, one = broadcast(1.0f), t = x < zero ? -x : x;
  const Vector u = one / (one + t * 0.3f);
  Vector p = broadcast(0.0303579442f);
  p = p * u - 0.129498391f;
  p = p * u + 0.145907704f;
  p = p * u + 0.0177889256f;
  p = p * u + 0.0791940011f;
  p = p * u + 0.11978063f;
  p = p * u + 0.11645657f;
  p = p * u + 0.120012632f;
  const Vector tail = x * (p * u * exponential(t * t * -0.5f));
  return x < zero ? tail : x - tail;
}

inline Vector activated(Vector numbers, int activation) {
  const Vector zero = {};
  if (activation == 1) return numbers < zero ? zero : numbers;
  return activation == 2 ? gelu(numbers) : numbers;
}

void scale(const Scaling& s) {
  for (int i = 0; i < s.columns; i += LANES) {
    const int left = s.columns - i;
    const bool whole = left >= LANES;
    const Vector scales = whole ? load(s.scale + i) : load_some(s.scale + i, left);
    const Vector bias = whole ? load(s.bias + i) : load_some(s.bias + i, left);
    for (int row = 0; row < s.rows; ++row) {
      float* output = s.output + row * s.output_step + i;
      const Vector products = __builtin_convertvector(load_as<Integers>(s.products + row * s.stride + i), Vector);
      Vector numbers = products * broadcast(s.row_scale[row * s.row_scale_step]) * scales;
      if (!s.first) numbers = (whole ? load(output) : load_some(output, left)) + numbers;
      if (s.last) {
        numbers = activated(numbers + bias, s.activation);
        const float* addend = s.addend + row * s.output_step + i;
        numbers += s.addend == nullptr ? broadcast(s.addend_of_all) : whole ? load(addend) : load_some(addend, left);
      }
      if (whole)
        store(output, numbers);
      else
        store_some(output, numbers, left);
    }
  }
}

}  // namespace

extern const Quantized TIGHTBEAM_JOIN(QUANTIZED_, TIGHTBEAM_ISA);
const Quantized TIGHTBEAM_JOIN(QUANTIZED_, TIGHTBEAM_ISA) = {
    TIGHTBEAM_TEXT(TIGHTBEAM_ISA),
    ROWS_OF_ONE,
    ROWS_OF_TWO,
    sizeof(Group),
    largest,
    round,
    pack,
    correction,
    multiply,
    scale,
};

}  // namespace tightbeam
