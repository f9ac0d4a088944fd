// The loops of attention over rows of 8 bits that are no products, compiled once for each instruction set;
// `byte_rows()` is the best one of this machine. Products are those of kernels/cpu/quantized.h, whose tiles these make.
#pragma once

#include <cstddef>

namespace tightbeam {

constexpr int CHUNK = 64;          // bytes of a row that are turned at a time
constexpr int FINEST = 127 * 128;  // steps of the largest magnitude, of numbers that are split

// Rows of integers, `step` apart; row i is at place[i]. While they are turned, the rows at the same places that `next`
// has are fetched, unless it is null.
struct PlacedRows {
  const signed char* data;
  long step;
  const int* place;
  const signed char* next;
  long next_step;
};

struct ByteRows {
  const char* name;

  // numbers[i] x factor, at most FINEST, rounded to high[i] x 128 + low[i].
  void (*split)(const float* numbers, long count, float factor, signed char* high, signed char* low);

  // Bytes [first, first + count) of 16 rows as [chunks, 16, 16, 4]: the same four neighbours of every row side by side.
  // What a chunk has beyond them counts as 0.
  void (*turn_keys)(const PlacedRows& rows, long first, long count, unsigned char* tile);

  // A chunk of 4 x groups rows as 4 tiles [groups, 16, 4], `tile_bytes` apart: four rows of a column side by side.
  // `count` as above, at most a chunk. The columns of a whole chunk lie in an order that `sort_columns` undoes.
  void (*turn_values)(const PlacedRows& rows, long groups, long first, long count, unsigned char* tiles,
                      long tile_bytes);

  // Brings the 4 x 16 sums of a row, made of a whole chunk, into the order of its columns.
  void (*sort_columns)(int* const tiles[4]);

  // numbers[i] = (high[i] x 128 + low[i]) x factor x scales[i]; all scales are 1 where they are null.
  void (*join)(const int* high, const int* low, int count, float factor, const float* scales, float* numbers);

  // numbers[i] x= factors[i]
  void (*multiply)(float* numbers, const float* factors, long count);
};

const ByteRows& byte_rows();

}  // namespace tightbeam
