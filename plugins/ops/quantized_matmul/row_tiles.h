// Products by tiles of columns: the largest one of each tile, and single tiles of a row again.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/quantized.h"
#include "ops/quantized_matmul/arguments.h"

namespace tightbeam {

// best[i] = the largest of the numbers of tile i; the last tile may have fewer than 16. Returns the largest of all, or
// NaN if a number is NaN; then `best` may hold anything.
inline float largest_of_columns(const float* numbers, int columns, float* best) {
  const int whole = columns / TILE_COLUMNS, rest = columns % TILE_COLUMNS;
  const float largest = quantized().largest_of_tiles(numbers, whole, best);
  if (rest == 0) return largest;
  const float last = best[whole] = math().row_max(numbers + whole * TILE_COLUMNS, rest);
  return std::isnan(largest) || largest >= last ? largest : last;
}

// Computes products of a row, with the bits of QuantizedMatMul. `a` has one block and 8-bit weights, no activation and
// no addend.
class RowTiles {
 public:
  RowTiles(const QuantizedMatMulArguments<float>& a, long row)
      : a_(a),
        row_(row),
        packed_(aligned<unsigned char>(static_cast<size_t>(a.digits) * a.groups * kernels_.group_bytes)) {
    const long width = long{GROUP} * a.groups;
    const signed char* digits = a.rows + row * a.digits * width;
    kernels_.pack(digits, width, a.digits, a.groups, packed_.get());
    for (int digit = 0; digit < a.digits; ++digit)
      corrections_[digit] = kernels_.correction(digits + digit * width, width);
  }

  int columns(int tile) const { return std::min(TILE_COLUMNS, a_.Y - tile * TILE_COLUMNS); }

  // Writes the products of a tile.
  void write(int tile, float* products) const {
    const int first = tile * TILE_COLUMNS;
    const long tile_bytes = long{a_.groups} * TILE_STEP;
    alignas(LINE) int sums[2 * TILE_COLUMNS];
    Multiplication m{};
    m.packed = packed_.get();
    m.rows = a_.digits;
    m.tiles = 1;
    m.weights = a_.weights + tile * tile_bytes;
    m.tile_bytes = tile_bytes;
    m.groups = a_.groups;
    m.start = corrections_;
    m.products = sums;
    m.next = m.weights;
    m.next_step = TILE_STEP;
    kernels_.multiply(m);
    kernels_.scale({sums, TILE_COLUMNS, 1, columns(tile), a_.digits, a_.row_scale + row_, 1, a_.scale + first, true,
                    true, a_.bias + first, 0, nullptr, 0, products, TILE_COLUMNS});
  }

 private:
  const Quantized& kernels_ = quantized();
  const QuantizedMatMulArguments<float>& a_;
  const long row_;
  Aligned<unsigned char> packed_;
  int corrections_[2];
};

}  // namespace tightbeam
