// Checks that the operators with matrices in tiles of 16 columns share.
#pragma once

#include "kernels/cpu/quantized.h"
#include "kernels/operator.h"

namespace tightbeam {

// Ends the call unless its weights have the tiles of as many columns as the letter `columns` says.
inline void check_tiles(const Call& call, const char* columns) {
  const int size = call.size(columns), tiles = call.size("tiles"), expected = (size - 1) / TILE_COLUMNS + 1;
  if (tiles != expected)
    call.fail("weights has " + std::to_string(tiles) + " tiles, expected " + std::to_string(expected) +
              " of 16 columns for " + columns + " = " + std::to_string(size));
}

// Fills in what is added to the products [R, Y] of arguments that know R and Y: a tensor of their shape, or one number.
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
