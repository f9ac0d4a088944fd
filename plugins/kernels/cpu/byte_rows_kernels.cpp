// Compiled once for each instruction set, like math_kernels.cpp, and under the same rule: only the table may have
// external linkage.
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/vectors.h"

namespace tightbeam {
namespace {

constexpr int IN_ORDER[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

inline const signed char* at(const PlacedRows& rows, int row) { return rows.data + rows.place[row] * rows.step; }

// A copy of ROWS rows: `count` bytes of each, then zeros.
template <int ROWS>
struct Padded {
  alignas(64) signed char bytes[ROWS][CHUNK];

  Padded(const PlacedRows& given, long first, long count) {
    for (int row = 0; row < ROWS; ++row) {
      __builtin_memset(bytes[row], 0, CHUNK);
      __builtin_memcpy(bytes[row], at(given, row) + first, count);
    }
  }

  PlacedRows rows() const { return {bytes[0], CHUNK, IN_ORDER, nullptr, 0}; }
};

#if TIGHTBEAM_LANES == 16
typedef int Ints __attribute__((vector_size(64)));
typedef short Words __attribute__((vector_size(64)));
typedef long long Longs __attribute__((vector_size(64)));
typedef signed char Line __attribute__((vector_size(64)));

// Transposes the 128-bit lanes of four registers.
inline void transpose_lanes(Longs* v) {
  const Longs a = __builtin_shufflevector(v[0], v[1], 0, 1, 8, 9, 2, 3, 10, 11),
              b = __builtin_shufflevector(v[2], v[3], 0, 1, 8, 9, 2, 3, 10, 11),
              c = __builtin_shufflevector(v[0], v[1], 4, 5, 12, 13, 6, 7, 14, 15),
              d = __builtin_shufflevector(v[2], v[3], 4, 5, 12, 13, 6, 7, 14, 15);
  v[0] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  v[1] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  v[2] = __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11);
  v[3] = __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
}

inline Line biased(const signed char* from) { return load_as<Line>(from) ^ -128; }

// Transposes 4 x 4 groups in each 128-bit lane of four rows.
inline void transpose_groups(const PlacedRows& rows, long first, Longs* v) {
  const Ints a = (Ints)biased(at(rows, 0) + first), b = (Ints)biased(at(rows, 1) + first),
             c = (Ints)biased(at(rows, 2) + first), d = (Ints)biased(at(rows, 3) + first);
  const Longs ab = (Longs)__builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
              cd = (Longs)__builtin_shufflevector(c, d, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
              AB = (Longs)__builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31),
              CD = (Longs)__builtin_shufflevector(c, d, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  v[0] = __builtin_shufflevector(ab, cd, 0, 8, 2, 10, 4, 12, 6, 14);
  v[1] = __builtin_shufflevector(ab, cd, 1, 9, 3, 11, 5, 13, 7, 15);
  v[2] = __builtin_shufflevector(AB, CD, 0, 8, 2, 10, 4, 12, 6, 14);
  v[3] = __builtin_shufflevector(AB, CD, 1, 9, 3, 11, 5, 13, 7, 15);
}

inline void transpose_key_chunk(const PlacedRows& rows, long first, unsigned char* tile) {
  Longs transposed[4][4];  // [four rows][group of a lane]
  TIGHTBEAM_UNROLL
  for (int four = 0; four < 4; ++four)
    transpose_groups({rows.data, rows.step, rows.place + 4 * four, nullptr, 0}, first, transposed[four]);
  TIGHTBEAM_UNROLL
  for (int group = 0; group < 4; ++group) {
    Longs lanes[4] = {transposed[0][group], transposed[1][group], transposed[2][group], transposed[3][group]};
    transpose_lanes(lanes);
    TIGHTBEAM_UNROLL
    for (int lane = 0; lane < 4; ++lane) store_as(tile + (4 * lane + group) * CHUNK, lanes[lane]);
  }
}

#define TIGHTBEAM_LOW_BYTES(i) \
  i, i + 64, i + 1, i + 65, i + 2, i + 66, i + 3, i + 67, i + 4, i + 68, i + 5, i + 69, i + 6, i + 70, i + 7, i + 71
#define TIGHTBEAM_LOW_PAIRS(i) i, i + 32, i + 1, i + 33, i + 2, i + 34, i + 3, i + 35

// Brings the four rows of a column side by side. The columns are in order after `transpose_lanes`.
template <bool SORTED>
inline void transpose_value_chunk(const PlacedRows& rows, long first, unsigned char* tiles, long tile_bytes) {
  const Line a = biased(at(rows, 0) + first), b = biased(at(rows, 1) + first), c = biased(at(rows, 2) + first),
             d = biased(at(rows, 3) + first);
  const Words ab = (Words)__builtin_shufflevector(a, b, TIGHTBEAM_LOW_BYTES(0), TIGHTBEAM_LOW_BYTES(16),
                                                  TIGHTBEAM_LOW_BYTES(32), TIGHTBEAM_LOW_BYTES(48)),
              cd = (Words)__builtin_shufflevector(c, d, TIGHTBEAM_LOW_BYTES(0), TIGHTBEAM_LOW_BYTES(16),
                                                  TIGHTBEAM_LOW_BYTES(32), TIGHTBEAM_LOW_BYTES(48)),
              AB = (Words)__builtin_shufflevector(a, b, TIGHTBEAM_LOW_BYTES(8), TIGHTBEAM_LOW_BYTES(24),
                                                  TIGHTBEAM_LOW_BYTES(40), TIGHTBEAM_LOW_BYTES(56)),
              CD = (Words)__builtin_shufflevector(c, d, TIGHTBEAM_LOW_BYTES(8), TIGHTBEAM_LOW_BYTES(24),
                                                  TIGHTBEAM_LOW_BYTES(40), TIGHTBEAM_LOW_BYTES(56));
  Longs lanes[4] = {(Longs)__builtin_shufflevector(ab, cd, TIGHTBEAM_LOW_PAIRS(0), TIGHTBEAM_LOW_PAIRS(8),
                                                   TIGHTBEAM_LOW_PAIRS(16), TIGHTBEAM_LOW_PAIRS(24)),
                    (Longs)__builtin_shufflevector(ab, cd, TIGHTBEAM_LOW_PAIRS(4), TIGHTBEAM_LOW_PAIRS(12),
                                                   TIGHTBEAM_LOW_PAIRS(20), TIGHTBEAM_LOW_PAIRS(28)),
                    (Longs)__builtin_shufflevector(AB, CD, TIGHTBEAM_LOW_PAIRS(0), TIGHTBEAM_LOW_PAIRS(8),
                                                   TIGHTBEAM_LOW_PAIRS(16), TIGHTBEAM_LOW_PAIRS(24)),
                    (Longs)__builtin_shufflevector(AB, CD, TIGHTBEAM_LOW_PAIRS(4), TIGHTBEAM_LOW_PAIRS(12),
                                                   TIGHTBEAM_LOW_PAIRS(20), TIGHTBEAM_LOW_PAIRS(28))};
  if constexpr (SORTED) transpose_lanes(lanes);
  TIGHTBEAM_UNROLL
  for (int tile = 0; tile < 4; ++tile) store_as(tiles + tile * tile_bytes, lanes[tile]);
}

void sort_columns(int* const tiles[4]) {
  Longs lanes[4];
  TIGHTBEAM_UNROLL
  for (int tile = 0; tile < 4; ++tile) lanes[tile] = load_as<Longs>(tiles[tile]);
  transpose_lanes(lanes);
  TIGHTBEAM_UNROLL
  for (int tile = 0; tile < 4; ++tile) store_as(tiles[tile], lanes[tile]);
}
#else
typedef int Four __attribute__((vector_size(16)));
typedef signed char Sixteen __attribute__((vector_size(16)));
typedef short Eight __attribute__((vector_size(16)));

inline Sixteen biased(const signed char* from) { return load_as<Sixteen>(from) ^ -128; }

inline void transpose_key_chunk(const PlacedRows& rows, long first, unsigned char* tile) {
  for (int row = 0; row < 16; row += 4) {
    for (int byte = 0; byte < CHUNK; byte += 16) {  // 4 x 4 groups
      const long from = first + byte;
      const Columns<Four> columns =
          columns_of((Four)biased(at(rows, row) + from), (Four)biased(at(rows, row + 1) + from),
                     (Four)biased(at(rows, row + 2) + from), (Four)biased(at(rows, row + 3) + from));
      unsigned char* to = tile + byte / 4 * CHUNK + row * 4;
      for (int i = 0; i < 4; ++i) store_as(to + i * CHUNK, columns.of[i]);
    }
  }
}

template <bool>  // the columns are in order
inline void transpose_value_chunk(const PlacedRows& rows, long first, unsigned char* tiles, long tile_bytes) {
  for (int byte = 0; byte < CHUNK; byte += 16) {
    const long from = first + byte;
    const Sixteen a = biased(at(rows, 0) + from), b = biased(at(rows, 1) + from), c = biased(at(rows, 2) + from),
                  d = biased(at(rows, 3) + from);
    const Eight ab = (Eight)__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                cd = (Eight)__builtin_shufflevector(c, d, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                AB = (Eight)__builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31),
                CD = (Eight)__builtin_shufflevector(c, d, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    unsigned char* to = tiles + byte / 16 * tile_bytes;
    store_as(to, __builtin_shufflevector(ab, cd, 0, 8, 1, 9, 2, 10, 3, 11));
    store_as(to + 16, __builtin_shufflevector(ab, cd, 4, 12, 5, 13, 6, 14, 7, 15));
    store_as(to + 32, __builtin_shufflevector(AB, CD, 0, 8, 1, 9, 2, 10, 3, 11));
    store_as(to + 48, __builtin_shufflevector(AB, CD, 4, 12, 5, 13, 6, 14, 7, 15));
  }
}

void sort_columns(int* const*) {}
#endif

template <int ROWS>
inline void fetch_next(const PlacedRows& rows, long byte) {
  if (rows.next == nullptr) return;
  TIGHTBEAM_UNROLL
  for (int row = 0; row < ROWS; ++row) __builtin_prefetch(rows.next + rows.place[row] * rows.next_step + byte, 0, 2);
}

void transpose_keys(const PlacedRows& rows, long first, long count, unsigned char* tile) {
  for (long byte = 0; byte < count; byte += CHUNK, tile += 16 * CHUNK) {
    fetch_next<16>(rows, first + byte);
    if (count - byte < CHUNK)
      transpose_key_chunk(Padded<16>(rows, first + byte, count - byte).rows(), 0, tile);
    else
      transpose_key_chunk(rows, first + byte, tile);
  }
}

void transpose_values(const PlacedRows& rows, long groups, long first, long count, unsigned char* tiles,
                      long tile_bytes) {
  PlacedRows four = rows;
  for (long group = 0; group < groups; ++group, four.place += 4, tiles += CHUNK) {
    fetch_next<4>(four, first);
    if (count < CHUNK)
      transpose_value_chunk<true>(Padded<4>(four, first, count).rows(), 0, tiles, tile_bytes);
    else
      transpose_value_chunk<false>(four, first, tiles, tile_bytes);
  }
}

void combine(const int* high, const int* low, int count, float factor, const float* scales, float* numbers) {
  int i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Vector sums = __builtin_convertvector(load_as<Integers>(high + i), Vector) * 128.0f +
                        __builtin_convertvector(load_as<Integers>(low + i), Vector);
    const Vector scaled = sums * factor;
    store(numbers + i, scales == nullptr ? scaled : scaled * load(scales + i));
  }
  for (; i < count; ++i) {
    const float scaled = (static_cast<float>(high[i]) * 128.0f + static_cast<float>(low[i])) * factor;
    numbers[i] = scales == nullptr ? scaled : scaled * scales[i];
  }
}

void multiply(float* numbers, const float* factors, long count) {
  for (long i = 0; i < count; ++i) numbers[i] *= factors[i];
}

}  // namespace

extern const ByteRows TIGHTBEAM_JOIN(BYTE_ROWS_, TIGHTBEAM_ISA);
const ByteRows TIGHTBEAM_JOIN(BYTE_ROWS_, TIGHTBEAM_ISA) = {
    TIGHTBEAM_TEXT(TIGHTBEAM_ISA), transpose_keys, transpose_values, sort_columns, combine, multiply,
};

}  // namespace tightbeam
