// The loops of attention over rows of 8 bits that are no products, compiled once for each instruction set;
// `byte_rows()` is the best one of this machine. Products are those of kernels/cpu/quantized.h, whose tiles these make.
#pragma once

#include <cstddef>

namespace tightbeam {

constexpr int CHUNK = 64;          // bytes of a row that are turned at a time
constexpr int FINEST = 127 * 128;  // steps of the largest magnitude, of numbers that are split

// Rows of integers, `step` apart; row i is at place[i].
struct PlacedRows {
  const signed char* data;
  long step;
  const int* place;
};

struct ByteRows {
  const char* name;

  // numbers[i] x factor, at most FINEST, rounded to high[i] x 128 + low[i].
  void (*split)(const float* numbers, long count, float factor, signed char* high, signed char* low);

  // A chunk of 16 rows as [16, 16, 4]: the same four neighbours of every row side by side. A row has `count` bytes of
  // the chunk, and the others count as 0.
  void (*turn_keys)(PlacedRows rows, long first, long count, unsigned char* tile);

  // A chunk of 4 rows as 4 tiles [16, 4], `tile_bytes` apart: the rows of a column side by side. `count` as above.
  void (*turn_values)(PlacedRows rows, long first, long count, unsigned char* tiles, long tile_bytes);

  // numbers[i] = (high[i] x 128 + low[i]) x factor x scales[i]; all scales are 1 where they are null.
  void (*join)(const int* high, const int* low, int count, float factor, const float* scales, float* numbers);

  // numbers[i] x= factors[i]
  void (*multiply)(float* numbers, const float* factors, long count);
};

const ByteRows& byte_rows();

}  // namespace tightbeam
