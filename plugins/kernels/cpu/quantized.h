// The inner loops of products of integers, compiled once for each instruction set; `quantized()` is the best one of
// this machine. All give the same numbers, bit for bit: sums of integers are exact, and floats are never contracted.
//
// Weights lie in tiles of 16 columns, [Y / 16, K / 4, 16, 4] bytes: for four neighbours in K, 16 columns side by side,
// which is what the instructions for dot products of bytes read. A byte is 128 more than its weight, -127..127.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tightbeam {

constexpr int TILE_COLUMNS = 16;
constexpr int GROUP = 4;  // neighbours in K
constexpr int TILE_STEP = TILE_COLUMNS * GROUP;

// Sums of 255 x 127 stay below 2^31.
constexpr int MAX_GROUPS = 16384;

// The largest magnitude of a row out of its bits, to divide by: NaN of a row that has NaN or an infinity, and no less
// than a number whose inverse is finite.
inline float largest_of(unsigned bits) {
  constexpr unsigned INFINITE = 0x7F800000;
  constexpr float SMALLEST = 1e-30f;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return bits >= INFINITE ? __builtin_nanf("") : number < SMALLEST ? SMALLEST : number;
}

// Packed rows times tiles of weights.
struct Multiplication {
  const void* packed;  // [groups, rows]
  int rows, tiles;
  const unsigned char* weights;  // the first tile, from its first group that counts
  long tile_bytes;               // from a tile to the next one
  long groups;
  const int* start;           // of a row's products, [rows]; null to add to `products`
  int* products;              // [rows, 16 tiles]
  const unsigned char* next;  // what will be needed next, of each tile
  long next_step;             // bytes of it that each group fetches
};

// Products of integers to floats.
struct Scaling {
  const int* products;  // [rows, stride]
  int stride, rows, columns;
  const float* row_scale;  // of the first row
  long row_scale_step;     // to the next one's
  const float* scale;      // [columns]
  bool first, last;        // of the blocks whose sum an output is
  const float* bias;       // [columns]
  int activation;
  const float* addend;  // like `output`, or null
  float addend_of_all;  // where it is null
  float* output;
  long output_step;  // from a row to the next one
};

struct Quantized {
  const char* name;
  int rows_of_one, rows_of_two;  // most rows of a multiplication by one tile and by two; 0: none by two
  int group_bytes;               // of a group in packed rows

  // The bits of the largest magnitude: at least those of infinity where a number is NaN or infinite.
  unsigned (*largest)(const float* numbers, long count);

  // integers[i] = numbers[i] x factor, to the nearest, of two the even one.
  void (*round)(const float* numbers, long count, float factor, signed char* integers);

  // Brings rows of 4 x groups integers, `width` apart, into the order in which `multiply` reads them.
  void (*pack)(const signed char* integers, long width, int rows, long groups, void* packed);

  // -128 times the sum of integers, by which products with weights that are 128 too large are corrected.
  int (*correction)(const signed char* integers, long count);

  void (*multiply)(const Multiplication& multiplication);

  // output = products x row_scale x scale, added to what is there unless `first`; and in the end, if `last`,
  // activation(output + bias) + addend. Activations: 0 none, 1 ReLU, 2 GELU, 3 SiLU, 4 GELU by tanh.
  void (*scale)(const Scaling& scaling);
};

const Quantized& quantized();

}  // namespace tightbeam
