// The inner loops of products of floats with a matrix in tiles of 16 columns, [Y / 16, X, 16], compiled once for each
// instruction set; `linear_kernels()` is the best one of this machine.
//
// Every product is one sum from the first number of its row to the last, whatever the number of rows, so that a row
// gives the same bits in every batch.
#pragma once

#include "kernels/cpu/quantized.h"

namespace tightbeam {

// Packed rows times tiles of columns, over some or all of X.
struct TileProduct {
  const float* rows;  // [count, height]: for each number of a row, the rows side by side
  int height;
  const float* weights;  // the first tile, from its first row that counts
  long tile_step;        // floats from a tile to the next one
  int tiles;
  long count;
  bool first;         // sums begin here; else they go on
  float* sums;        // [height, 16 tiles]
  const float* next;  // what will be needed next, of each tile
  long every;         // steps for which one line of it is fetched
};

// Sums to outputs: sums + bias + addend.
struct TileOutput {
  const float* sums;  // [rows, stride]
  int stride, rows, columns;
  const float* bias;    // [columns]
  const float* addend;  // like `output`, or null
  float addend_of_all;  // where it is null
  float* output;
  long output_step;  // from a row to the next one
};

struct LinearKernels {
  const char* name;
  int most_rows;  // of a product

  // Tiles by which as many rows are best multiplied at once: 1, 2 or 4.
  int (*tiles_of)(int height);

  // Brings `height` rows, `step` numbers apart, into the order in which `multiply` reads them.
  void (*pack)(const float* rows, long step, int height, long count, float* packed);

  void (*multiply)(const TileProduct& product);

  void (*finish)(const TileOutput& output);
};

const LinearKernels& linear_kernels();

}  // namespace tightbeam
