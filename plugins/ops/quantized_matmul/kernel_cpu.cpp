// Rows are packed in tiles of as many as registers hold sums for; a tile of rows times a tile of 32 columns is the inner
// loop. Few rows are packed once, and threads share out the columns: memory decides, so each weight is read once, and
// the next tile of columns is fetched meanwhile. Many rows are shared out in blocks that stay in the cache.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/quantized_matmul/arguments.h"

namespace tightbeam {
namespace {

constexpr int FEW_ROWS = 96;
constexpr int BLOCK_ROWS = 48;
constexpr long BYTES_OF_ITEM = 1 << 17;  // of weights: ten microseconds of a thread's memory bandwidth
constexpr long PRODUCTS_OF_ITEM = 1 << 21;
constexpr int MOST_TILE_ROWS = 16;
constexpr int LINE = 64;

struct FreeAligned {
  void operator()(unsigned char* memory) const { ::operator delete(memory, std::align_val_t{LINE}); }
};

// Some rows of the call, packed block by block of their width in tiles of rows.
class PackedRows {
 public:
  PackedRows(const QuantizedMatMulArguments<float>& a, long begin, long end)
      : kernels_(quantized()),
        begin_(begin),
        rows_(static_cast<int>(end - begin)),
        tiles_((rows_ - 1) / kernels_.most_rows + 1),
        groups_(a.groups / a.blocks),
        blocks_(a.blocks),
        bytes_(static_cast<unsigned char*>(
            ::operator new(static_cast<size_t>(rows_) * a.groups * kernels_.group_bytes, std::align_val_t{LINE}))),
        sums_(static_cast<size_t>(rows_) * a.blocks) {
    const long width = static_cast<long>(a.groups) * GROUP;
    for (int tile = 0; tile < tiles_; ++tile)
      for (int block = 0; block < blocks_; ++block)
        kernels_.pack(a.rows + (begin_ + first(tile)) * width + block * groups_ * GROUP, width, count(tile), groups_,
                      packed(tile, block), sums(tile, block));
  }

  int tiles() const { return tiles_; }
  int first(int tile) const { return static_cast<int>(static_cast<long>(rows_) * tile / tiles_); }
  int count(int tile) const { return first(tile + 1) - first(tile); }
  long row(int tile) const { return begin_ + first(tile); }
  unsigned char* packed(int tile, int block) const {
    return bytes_.get() + (static_cast<long>(first(tile)) * blocks_ + static_cast<long>(block) * count(tile)) * groups_ *
                              kernels_.group_bytes;
  }
  int* sums(int tile, int block) { return sums_.data() + first(tile) * blocks_ + block * count(tile); }
  const int* sums(int tile, int block) const { return sums_.data() + first(tile) * blocks_ + block * count(tile); }

 private:
  const Quantized& kernels_;
  long begin_;
  int rows_, tiles_;
  long groups_;
  int blocks_;
  std::unique_ptr<unsigned char, FreeAligned> bytes_;
  std::vector<int> sums_;
};

// Packed rows times the tiles [begin, end) of the weights.
void multiply(const QuantizedMatMulArguments<float>& a, const PackedRows& rows, int begin, int end) {
  const Quantized& kernels = quantized();
  const long groups = a.groups / a.blocks, tile_bytes = static_cast<long>(a.groups) * TILE_STEP;
  alignas(LINE) int products[MOST_TILE_ROWS * TILE_COLUMNS];
  for (int tile = begin; tile < end; ++tile) {
    const unsigned char* weights = a.weights + tile * tile_bytes;
    const int first = tile * TILE_COLUMNS, columns = std::min(TILE_COLUMNS, a.Y - first);
    // Each tile of rows fetches its share of the next tile of weights.
    const long step = tile + 1 < end ? (TILE_STEP - 1) / rows.tiles() + 1 : 0;
    const unsigned char* next = tile + 1 < end ? weights + tile_bytes : weights;
    for (int i = 0; i < rows.tiles(); ++i) {
      const int count = rows.count(i);
      float* output = a.products + rows.row(i) * a.Y + first;
      for (int block = 0; block < a.blocks; ++block, next += step * groups) {
        kernels.multiply(rows.packed(i, block), rows.sums(i, block), count, weights + block * groups * TILE_STEP, groups,
                         products, next, step);
        for (int row = 0; row < count; ++row)
          kernels.scale(products + row * TILE_COLUMNS, columns, a.row_scale[(rows.row(i) + row) * a.blocks + block],
                        a.scale + static_cast<long>(block) * a.Y + first, block == 0,
                        output + static_cast<long>(row) * a.Y);
      }
      for (int row = 0; row < count; ++row)
        kernels.finish(output + static_cast<long>(row) * a.Y, columns, a.bias + first, a.activation,
                       a.addend == nullptr ? nullptr : a.addend + (rows.row(i) + row) * a.Y + first, a.addend_of_all);
    }
  }
}

int tiles_of_item(const QuantizedMatMulArguments<float>& a) {
  const long bytes = static_cast<long>(a.groups) * TILE_STEP;
  return static_cast<int>(std::max(1L, std::min(BYTES_OF_ITEM / bytes, PRODUCTS_OF_ITEM / (bytes * a.R))));
}

}  // namespace

void quantized_matmul(const QuantizedMatMulArguments<float>& a, const Parallel& parallel) {
  const int tiles = (a.Y - 1) / TILE_COLUMNS + 1;
  if (a.R <= FEW_ROWS) {
    const PackedRows rows(a, 0, a.R);
    const int each = tiles_of_item(a);
    parallel.for_each((tiles - 1) / each + 1, [&](size_t item) {
      const int begin = static_cast<int>(item) * each;
      multiply(a, rows, begin, std::min(tiles, begin + each));
    });
    return;
  }
  const int blocks = (a.R - 1) / BLOCK_ROWS + 1, halves = blocks < 16 && tiles > 1 ? 2 : 1;
  parallel.for_each(static_cast<size_t>(blocks) * halves, [&](size_t item) {
    const long block = static_cast<long>(item) / halves, half = static_cast<long>(item) % halves;
    const PackedRows rows(a, a.R * block / blocks, a.R * (block + 1) / blocks);
    multiply(a, rows, static_cast<int>(tiles * half / halves), static_cast<int>(tiles * (half + 1) / halves));
  });
}

}  // namespace tightbeam
