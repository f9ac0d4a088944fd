// The inner loops of attention over 8-bit rows beside its products, compiled once for each instruction set.
// `byte_rows()` returns the best version for this machine; all give the same bits. The products are in
// kernels/cpu/quantized.h; the loops here make their tiles.
#pragma once

#include <cstddef>

namespace tightbeam {

constexpr int CHUNK = 64;  // bytes of a row that are transposed at a time

// Rows of integers, `step` apart; row i is at place[i]. While they are transposed, the rows of `next` at the same
// places are prefetched, unless `next` is null.
struct PlacedRows {
  const signed char* data;
  long step;
  const int* place;
  const signed char* next;
  long next_step;
};

struct ByteRows {
  const char* name;

  // Writes bytes [first, first + count) of 16 rows as [chunks, 16, 16, 4]: the same four neighbours of all rows are
  // side by side. The rest of the last chunk is 0.
  void (*transpose_keys)(const PlacedRows& rows, long first, long count, unsigned char* tile);

  // Writes bytes [first, first + count) of 4 x groups rows, at most a chunk, as 4 tiles [groups, 16, 4], `tile_bytes`
  // apart: four rows of a column are side by side. The columns of a whole chunk are in an order of their own, which
  // `sort_columns` undoes.
  void (*transpose_values)(const PlacedRows& rows, long groups, long first, long count, unsigned char* tiles,
                           long tile_bytes);

  // Sorts the 4 x 16 sums of a row over a whole chunk into the order of its columns.
  void (*sort_columns)(int* const tiles[4]);

  // numbers[i] = (high[i] x 128 + low[i]) x factor x scales[i]; the scales are 1 if `scales` is null.
  void (*combine)(const int* high, const int* low, int count, float factor, const float* scales, float* numbers);

  // numbers[i] *= factors[i]
  void (*multiply)(float* numbers, const float* factors, long count);
};

const ByteRows& byte_rows();

}  // namespace tightbeam
