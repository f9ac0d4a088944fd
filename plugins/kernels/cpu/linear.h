// The inner loops of products of floats with a matrix in tiles of 16 columns, [Y / 16, X, 16], compiled once for each
// instruction set. `linear_kernels()` returns the best version for this machine.
//
// A product is summed from the first number of its row to the last for every number of rows, so that a row gives the
// same bits in every batch.
#pragma once

#include "kernels/cpu/quantized.h"

namespace tightbeam {

// Packed rows times tiles of columns, over some or all of X.
struct TileProduct {
  const float* rows;  // [count, height]: the rows side by side, number by number
  int height;
  const float* weights;  // the first tile, from the row where the product begins
  long tile_step;        // floats from a tile to the next
  int tiles;
  long count;
  bool first;         // true: the sums begin at 0; false: they continue
  float* sums;        // [height, 16 tiles]
  const float* next;  // the weights of each tile that are needed next
  long every;         // steps for each cache line of `next` that is prefetched
};

// The end of a product: output = sums + bias + addend.
struct TileOutput {
  const float* sums;  // [rows, stride]
  int stride, rows, columns;
  const float* bias;    // [columns]
  const float* addend;  // like `output`, or null
  float addend_of_all;  // in its place if it is null
  float* output;
  long output_step;  // from a row to the next
};

struct LinearKernels {
  const char* name;
  int most_rows;  // height of a product at most

  // How many tiles are best multiplied at once by `height` rows: 1, 2 or 4.
  int (*tiles_of)(int height);

  // Brings `height` rows, `step` numbers apart, into the order in which `multiply` reads them.
  void (*pack)(const float* rows, long step, int height, long count, float* packed);

  void (*multiply)(const TileProduct& product);

  void (*finish)(const TileOutput& output);
};

const LinearKernels& linear_kernels();

}  // namespace tightbeam
