// The inner loops of products of integers, compiled once for each instruction set; `quantized()` is the best one of this
// machine. All give the same numbers, bit for bit: sums of integers are exact, and floats are never contracted.
//
// Weights lie in tiles of 32 columns, [Y / 32, K / 4, 32, 4] bytes: for four neighbours in K, 32 columns side by side,
// which is what the instructions for dot products of bytes read. A byte is 128 more than its weight, -127..127.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tightbeam {

constexpr int TILE_COLUMNS = 32;
constexpr int GROUP = 4;  // neighbours in K
constexpr int TILE_STEP = TILE_COLUMNS * GROUP;

// Sums of 255 x 127 stay below 2^31.
constexpr int MAX_GROUPS = 16384;

struct Quantized {
  const char* name;
  int most_rows;    // that `multiply` takes at once
  int group_bytes;  // of a group in packed rows

  // The bits of the largest magnitude: at least those of infinity where a number is NaN or infinite.
  unsigned (*largest)(const float* numbers, long count);

  // integers[i] = numbers[i] x factor, to the nearest, of two the even one.
  void (*round)(const float* numbers, long count, float factor, signed char* integers);

  // Brings `rows` rows of 4 x groups integers into the order in which `multiply` reads them, and sets sums[row] to
  // -128 times their sum, by which products with weights that are 128 too large are corrected.
  void (*pack)(const signed char* integers, long stride, int rows, long groups, void* packed, int* sums);

  // products[row * 32 + column] = row . column of a tile, and fetches what will be needed next: `next_step` bytes of it
  // with every group.
  void (*multiply)(const void* packed, const int* sums, int rows, const unsigned char* tile, long groups,
                   int* products, const unsigned char* next, long next_step);

  // output[column] = products[column] x row_scale x scales[column], added to what is there unless `first`.
  void (*scale)(const int* products, int columns, float row_scale, const float* scales, bool first, float* output);

  // output[column] = activation(output[column] + bias[column]) + addend[column], or + addend_of_all where that is null.
  // Activations: 0 none, 1 ReLU, 2 GELU.
  void (*finish)(float* output, int columns, const float* bias, int activation, const float* addend,
                 float addend_of_all);
};

const Quantized& quantized();

}  // namespace tightbeam
