// The inner loops of products of integers, compiled once for each instruction set. `quantized()` returns the best
// version for this machine, and `quantized_matrices` a better one for many rows, if there is one. All versions give the
// same bits: sums of integers are exact, and floats are never contracted.
//
// Weights are in tiles of 16 columns, [Y / 16, K / 4, 16, 4] bytes: four neighbours in K of 16 columns side by side,
// which is what the instructions for dot products of bytes read. A byte is 128 more than its weight, -127..127.
// Weights of 4 bits are 8 more than their value, and a byte has two: those of one group in the low bits of 64 bytes,
// and those of the next group in the high bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tightbeam {

constexpr int TILE_COLUMNS = 16;
constexpr int GROUP = 4;  // neighbours in K
constexpr int TILE_STEP = TILE_COLUMNS * GROUP;

constexpr int INT4_BLOCK = 32;  // weights of 4 bits in a column that share a scale
constexpr int INT4_GROUPS = INT4_BLOCK / GROUP;

// A tile of rows for AMX has at most AMX_ROWS rows. AMX multiplies AMX_GROUPS groups at a time.
constexpr int AMX_ROWS = 32, AMX_GROUPS = 16;

constexpr int FINEST = 127 * 128;  // steps into which the largest magnitude of a split row is divided

// So that sums of 255 x 127 stay below 2^31.
constexpr int MAX_GROUPS = 16384;

// The largest magnitude of a row as a divisor, from its bits: NaN if the row has NaN or an infinite value, and never so
// small that its inverse is infinite.
inline float largest_of(unsigned bits) {
  constexpr unsigned INFINITE = 0x7F800000;
  constexpr float SMALLEST = 1e-30f;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return bits >= INFINITE ? __builtin_nanf("") : number < SMALLEST ? SMALLEST : number;
}

// Packed rows times tiles of weights.
struct Multiplication {
  const void* packed;  // [groups, rows]; for AMX [groups / 16, rows, 16]
  int rows, tiles;
  const unsigned char* weights;  // the first tile, from the group where the product begins
  long tile_bytes;               // from a tile to the next
  long groups;
  const int* start;           // [rows]: the first term of each sum; null: the sums continue
  int* products;              // [rows, 16 tiles]
  const unsigned char* next;  // the weights of each tile that are needed next
  long next_step;             // bytes of `next` for each 64 bytes of weights: one cache line is prefetched
  // Of weights of 4 bits, for each block: rows come in pairs, high and low digits, and products are floats
  // [rows / 2, 16 tiles], which continue if `start` is null.
  const unsigned char* block_scale = nullptr;  // the first tile's, [blocks, 16]
  long block_scale_step = 0;                   // from a tile to the next
  const int* corrections = nullptr;            // [blocks, .]: the first term of each pair's sum
  long corrections_step = 0;                   // from a block to the next
};

// The end of a product, from integers to floats.
struct Scaling {
  const int* products;  // [rows, digits, stride]
  int stride, rows, columns;
  int digits;              // 2: a sum is 128 times the first one plus the second one; 0: a sum is one float
  const float* row_scale;  // of the first row
  long row_scale_step;     // to the next row's
  const float* scale;      // [columns]
  bool first, last;        // whether the block is the first, and the last, of an output's sum
  const float* bias;       // [columns]
  int activation;
  const float* addend;  // like `output`, or null
  float addend_of_all;  // in its place if it is null
  float* output;
  long output_step;  // from a row to the next
};

struct Quantized {
  const char* name;
  int rows_of_one, rows_of_two;  // rows at most, by one tile and by two tiles; 0: never by two
  int int4_rows;                 // the same of weights of 4 bits, by as many tiles as others
  int group_bytes;               // bytes of a group in packed rows
  int groups_at_once;            // `multiply` begins and ends at multiples of as many groups

  // The bits of the largest magnitude. If a number is NaN or infinite, they are not less than infinity's bits.
  unsigned (*largest)(const float* numbers, long count);

  // integers[i] = numbers[i] x factor, rounded to the nearest, ties to even.
  void (*round)(const float* numbers, long count, float factor, signed char* integers);

  // Rounds numbers[i] x factor, at most FINEST, to high[i] x 128 + low[i].
  void (*split)(const float* numbers, long count, float factor, signed char* high, signed char* low);

  // Brings rows of 4 x groups integers, `width` apart, into the order in which `multiply` reads them.
  void (*pack)(const signed char* integers, long width, int rows, long groups, void* packed);

  // Where the sums of a row begin: -128 times the sum of its integers, which corrects products with weights that are
  // 128 too large, or 0 if `multiply` takes the 128 from the weights.
  int (*correction)(const signed char* integers, long count);

  // -8 times the sum of each block of 32 numbers of a row in two digits, `step` apart.
  void (*int4_corrections)(const signed char* high, const signed char* low, long blocks, int* corrections, long step);

  void (*multiply)(const Multiplication& multiplication);
  void (*multiply_int4)(const Multiplication& multiplication);

  // output = sums x row_scale x scale, added to the output so far unless `first`. If `last`, the output then
  // becomes activation(output + bias) + addend. Activations are 0: none, 1: ReLU, 2: GELU, 3: SiLU, 4: GELU by tanh.
  void (*scale)(const Scaling& scaling);

  // best[i] = the largest of the 16 numbers of tile i. Returns the largest of all, or NaN if a number is NaN; then
  // `best` may hold anything.
  float (*largest_of_tiles)(const float* numbers, long tiles, float* best);
};

const Quantized& quantized();

// The best table for a product of `rows` rows by 8-bit weights with sums over `groups` groups. Rows that a table packed
// can be multiplied by that table alone.
const Quantized& quantized_matrices(long rows, long groups);

}  // namespace tightbeam
