// What the operators with matrices in tiles of 16 columns share of reading a call.
#pragma once

#include "kernels/cpu/quantized.h"
#include "kernels/operator.h"

namespace tightbeam {

// Checks that the weights have as many tiles as the size of the letter `columns` needs.
inline void check_tiles(const Call& call, const char* columns) {
  const int size = call.size(columns), tiles = call.size("tiles"), expected = (size - 1) / TILE_COLUMNS + 1;
  if (tiles != expected)
    call.fail("weights has " + std::to_string(tiles) + " tiles, expected " + std::to_string(expected) +
              " of 16 columns for " + columns + " = " + std::to_string(size));
}

// Fills in the addend of products [R, Y]: a tensor of their shape, or one number. `arguments` has R and Y already.
template <class Float, class Arguments>
void set_addend(const Call& call, Arguments& arguments) {
  const int rows = call.size("addend_rows"), columns = call.size("addend_columns");
  const bool whole = rows == arguments.R && columns == arguments.Y;
  if (!whole && (rows != 1 || columns != 1))
    call.fail("addend is [" + std::to_string(rows) + ", " + std::to_string(columns) + "], expected [1, 1] or [" +
              std::to_string(arguments.R) + ", " + std::to_string(arguments.Y) + "]");
  const Float* addend = call.input<Float>("addend");
  if (whole)
    arguments.addend = addend;
  else
    arguments.addend_of_all = *addend;
}

}  // namespace tightbeam
