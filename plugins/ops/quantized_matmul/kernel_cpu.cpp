// Rows are packed in tiles of as many as registers hold sums for; a tile of rows times one or two tiles of columns is
// the inner loop. Few rows are packed once, and threads share out the columns: memory decides, so each weight is read
// from it once. Many rows are shared out in blocks that stay in the cache. A stretch of the weights stays in the first
// cache while all tiles of rows are multiplied by it, and these fetch the next stretch meanwhile.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "ops/quantized_matmul/arguments.h"

namespace tightbeam {
namespace {

constexpr int MOST_PACKED_ONCE = 96;     // rows
constexpr int BLOCK_ROWS = 48;           // of more rows
constexpr long BYTES_OF_ITEM = 1 << 17;  // of weights: ten microseconds of a thread's memory bandwidth
constexpr long PRODUCTS_OF_ITEM = 1 << 21;
constexpr long FIRST_CACHE = 24 << 10;  // bytes of it for a stretch, the next one, and the rows
constexpr long AHEAD = 4096;            // bytes
constexpr int LINE = 64;

struct FreeAligned {
  void operator()(unsigned char* memory) const { ::operator delete(memory, std::align_val_t{LINE}); }
};

// Some rows of the call, packed in tiles of rows.
class PackedRows {
 public:
  PackedRows(const QuantizedMatMulArguments<float>& a, long begin, long end, int most_rows)
      : kernels_(quantized()),
        begin_(begin),
        rows_(static_cast<int>(end - begin)),
        groups_(a.groups),
        bytes_(static_cast<unsigned char*>(
            ::operator new(static_cast<size_t>(rows_) * groups_ * kernels_.group_bytes, std::align_val_t{LINE}))),
        corrections_(static_cast<size_t>(rows_) * a.blocks) {
    const int tiles = (rows_ - 1) / most_rows + 1;
    for (int tile = 0; tile <= tiles; ++tile) first_.push_back(rows_ * tile / tiles);
    const long width = groups_ * GROUP, block_width = width / a.blocks;
    for (int tile = 0; tile < tiles; ++tile)
      kernels_.pack(a.rows + row(tile) * width, width, count(tile), groups_, bytes_.get() + offset(tile, 0));
    for (int block = 0; block < a.blocks; ++block)
      for (int i = 0; i < rows_; ++i)
        corrections_[static_cast<size_t>(block) * rows_ + i] =
            kernels_.correction(a.rows + (begin_ + i) * width + block * block_width, block_width);
  }

  int rows() const { return rows_; }
  int tiles() const { return static_cast<int>(first_.size()) - 1; }
  int first(int tile) const { return first_[tile]; }
  int count(int tile) const { return first_[tile + 1] - first_[tile]; }
  long row(int tile) const { return begin_ + first(tile); }
  const unsigned char* packed(int tile, long group) const { return bytes_.get() + offset(tile, group); }
  const int* corrections(int tile, int block) const {
    return corrections_.data() + static_cast<size_t>(block) * rows_ + first(tile);
  }

 private:
  long offset(int tile, long group) const {
    return (first(tile) * groups_ + group * count(tile)) * kernels_.group_bytes;
  }

  const Quantized& kernels_;
  long begin_;
  int rows_;
  std::vector<int> first_;  // of each tile, and the end
  long groups_;
  std::unique_ptr<unsigned char, FreeAligned> bytes_;
  std::vector<int> corrections_;
};

// Packed rows times the tiles [begin, end) of the weights, `most` of them at once.
void multiply(const QuantizedMatMulArguments<float>& a, const PackedRows& rows, int begin, int end, int most) {
  const Quantized& kernels = quantized();
  const long groups = a.groups / a.blocks, tile_bytes = static_cast<long>(a.groups) * TILE_STEP;
  const long fitting = FIRST_CACHE / (2L * most * TILE_STEP + rows.count(rows.tiles() - 1) * kernels.group_bytes);
  const long stretches = rows.tiles() == 1 ? 1 : (groups - 1) / std::max(1L, fitting) + 1;
  const std::unique_ptr<int[]> products(new int[static_cast<size_t>(rows.rows()) * most * TILE_COLUMNS]);
  for (int tile = begin; tile < end; tile += most) {
    const int tiles = std::min(most, end - tile), first = tile * TILE_COLUMNS;
    const int stride = tiles * TILE_COLUMNS, columns = std::min(stride, a.Y - first);
    for (int block = 0; block < a.blocks; ++block) {
      for (long stretch = 0; stretch < stretches; ++stretch) {
        const long from = block * groups + groups * stretch / stretches;
        const long count = block * groups + groups * (stretch + 1) / stretches - from;
        const unsigned char* weights = a.weights + tile * tile_bytes + from * TILE_STEP;
        // The next stretch of these tiles, or the first one of the next tiles; a single tile of rows has no stretches.
        const bool turns = from + count == a.groups;
        const unsigned char* next =
            weights + (rows.tiles() == 1 ? AHEAD : count * TILE_STEP + (turns ? (tiles - 1) * tile_bytes : 0));
        const long step = (TILE_STEP - 1) / rows.tiles() + 1;
        for (int i = 0; i < rows.tiles(); ++i) {
          int* own = products.get() + rows.first(i) * stride;
          kernels.multiply({rows.packed(i, from), rows.count(i), tiles, weights, tile_bytes, count,
                            stretch == 0 ? rows.corrections(i, block) : nullptr, own, next + i * step * count, step});
          if (stretch + 1 < stretches) continue;
          const long row = rows.row(i);
          kernels.scale({own, stride, rows.count(i), columns, a.row_scale + row * a.blocks + block, a.blocks,
                         a.scale + static_cast<long>(block) * a.Y + first, block == 0, block + 1 == a.blocks,
                         a.bias + first, a.activation, a.addend == nullptr ? nullptr : a.addend + row * a.Y + first,
                         a.addend_of_all, a.products + row * a.Y + first, a.Y});
        }
      }
    }
  }
}

// A count of columns' tiles that is worth a thread's attention, and a multiple of `most`.
int tiles_of_item(const QuantizedMatMulArguments<float>& a, int most) {
  const long bytes = static_cast<long>(a.groups) * TILE_STEP;
  const long tiles = std::min(BYTES_OF_ITEM / bytes, PRODUCTS_OF_ITEM / (bytes * a.R));
  return static_cast<int>(std::max(1L, tiles / most)) * most;
}

}  // namespace

void quantized_matmul(const QuantizedMatMulArguments<float>& a, const Parallel& parallel) {
  const Quantized& kernels = quantized();
  const int tiles = (a.Y - 1) / TILE_COLUMNS + 1;
  const int most = kernels.rows_of_two > 0 ? 2 : 1;
  const int most_rows = most == 2 ? kernels.rows_of_two : kernels.rows_of_one;
  if (a.R <= MOST_PACKED_ONCE) {
    const PackedRows rows(a, 0, a.R, most_rows);
    const int each = tiles_of_item(a, most);
    parallel.for_each((tiles - 1) / each + 1, [&](size_t item) {
      const int begin = static_cast<int>(item) * each;
      multiply(a, rows, begin, std::min(tiles, begin + each), most);
    });
    return;
  }
  const int blocks = (a.R - 1) / BLOCK_ROWS + 1, pairs = (tiles - 1) / most + 1;
  const int parts = blocks < 16 && pairs > 1 ? 2 : 1;
  parallel.for_each(static_cast<size_t>(blocks) * parts, [&](size_t item) {
    const long block = static_cast<long>(item) / parts, part = static_cast<long>(item) % parts;
    const PackedRows rows(a, a.R * block / blocks, a.R * (block + 1) / blocks, most_rows);
    multiply(a, rows, static_cast<int>(pairs * part / parts) * most,
             std::min(tiles, static_cast<int>(pairs * (part + 1) / parts) * most), most);
  });
}

}  // namespace tightbeam
