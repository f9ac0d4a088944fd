// Rows are packed in tiles, each of as many rows as the registers hold sums for. The inner loop multiplies a tile of
// rows by one, two or four tiles of columns, over a part of X. The part's weights stay in the first cache while all
// tiles of rows are multiplied by them, and the next part is prefetched meanwhile. An item is a block of rows times a
// range of columns. Few rows are one block, so that each weight is read from memory once.
#include <algorithm>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/range.h"
#include "ops/linear/arguments.h"

namespace tightbeam {
namespace {

constexpr int FEW_ROWS = 96;               // rows that are one block; a block has at most so many
constexpr int FEWEST_ROWS = 24;            // of a block at least, if there are several
constexpr long BYTES_OF_ROWS = 512 << 10;  // of a block, if there are several: they fit the second cache
constexpr long BYTES_AT_ONCE = 2 << 20;    // of rows that are packed at a time
constexpr long BYTES_TO_PACK = 64 << 10;   // of an item that packs rows
constexpr int PART = 256;                  // numbers of a row in a part of X
constexpr long AHEAD = 1024;               // floats to prefetch ahead, with a single tile of rows
constexpr long BYTES_OF_ITEM = 128 << 10;  // of an item's weights, for few rows
constexpr long PRODUCTS_OF_ITEM = 1 << 20;
constexpr long ITEMS = 16;                         // at least, for many rows
constexpr int MOST_ROWS = FEW_ROWS + FEWEST_ROWS;  // of a block at most, with the rest of its last tile
constexpr int SUMS =
    MOST_ROWS * 2 * TILE_COLUMNS;  // of an item; only a single tile of rows is multiplied by four tiles

// Some rows of the call, packed in tiles of rows.
class PackedRows {
 public:
  PackedRows(const LinearArguments<float>& a, long begin, long end, const Parallel& parallel)
      : a_(a),
        begin_(begin),
        rows_(static_cast<int>(end - begin)),
        tiles_((rows_ - 1) / kernels_.most_rows + 1),
        each_((rows_ - 1) / tiles_ + 1) {
    if (rows_ == 1) return;  // a single row is packed already
    packed_ = aligned<float>(static_cast<size_t>(rows_) * a.X);
    const int items = static_cast<int>(std::min<long>(tiles_, rows_ * 4L * a.X / BYTES_TO_PACK + 1));
    parallel.for_each(items, [&](size_t item) {
      const Range range = Range{0, tiles_}.part(static_cast<long>(item), items);
      for (int tile = range.begin; tile < range.end; ++tile)
        kernels_.pack(a_.rows + row(tile) * a_.X, a_.X, height(tile), a_.X,
                      packed_.get() + static_cast<long>(first(tile)) * a_.X);
    });
  }

  int tiles() const { return tiles_; }
  int most() const { return each_; }
  int height(int tile) const { return first(tile + 1) - first(tile); }
  long row(int tile) const { return begin_ + first(tile); }
  const float* packed(int tile, long x) const {
    if (rows_ == 1) return a_.rows + begin_ * a_.X + x;
    return packed_.get() + static_cast<long>(first(tile)) * a_.X + x * height(tile);
  }

 private:
  int first(int tile) const { return std::min(rows_, tile * each_); }

  const LinearKernels& kernels_ = linear_kernels();
  const LinearArguments<float>& a_;
  long begin_;
  int rows_, tiles_, each_;  // each_: rows of a tile; the last one may have fewer
  Aligned<float> packed_;
};

// Multiplies tiles of rows by tiles of columns, at most `most` of these at once.
void multiply(const LinearArguments<float>& a, const PackedRows& rows, Range row_tiles, Range tiles, int most) {
  const LinearKernels& kernels = linear_kernels();
  const long tile_step = long{TILE_COLUMNS} * a.X;
  const int row_tile_count = row_tiles.size();
  const Range all{0, a.X};
  const int parts = (a.X - 1) / PART + 1;
  alignas(LINE) float sums[SUMS];
  for (int tile = tiles.begin, count; tile < tiles.end; tile += count) {
    count = most;
    while (count > tiles.end - tile) count /= 2;
    const int first = tile * TILE_COLUMNS, stride = count * TILE_COLUMNS, columns = std::min(stride, a.Y - first);
    const float* weights = a.weights + tile * tile_step;
    for (int part = 0; part < parts; ++part) {
      const Range range = all.part(part, parts);
      const float* own = weights + range.begin * long{TILE_COLUMNS};
      const bool over = part + 1 == parts;
      const float* next = row_tile_count == 1 ? own + AHEAD
                          : over              ? weights + count * tile_step
                                              : own + range.size() * long{TILE_COLUMNS};
      float* to = sums;
      for (int i = 0; i < row_tile_count; ++i) {
        const int row_tile = row_tiles.begin + i, height = rows.height(row_tile);
        const long fetched = static_cast<long>(range.size()) * i / row_tile_count * TILE_COLUMNS;
        kernels.multiply({rows.packed(row_tile, range.begin), height, own, tile_step, count, range.size(), part == 0,
                          to, next + fetched, row_tile_count});
        const long row = rows.row(row_tile), place = row * a.Y + first;
        if (over)
          kernels.finish({to, stride, height, columns, a.bias + first, a.addend == nullptr ? nullptr : a.addend + place,
                          a.addend_of_all, a.products + place, a.Y});
        to += height * stride;
      }
    }
  }
}

}  // namespace

void linear(const LinearArguments<float>& a, const Parallel& parallel) {
  const LinearKernels& kernels = linear_kernels();
  const long row_bytes = 4L * a.X;
  const Range tiles{0, (a.Y - 1) / TILE_COLUMNS + 1};
  const long runs = (a.R - 1) / std::max<long>(FEW_ROWS, BYTES_AT_ONCE / row_bytes) + 1;
  for (long run = 0; run < runs; ++run) {
    const long begin = a.R * run / runs, end = a.R * (run + 1) / runs, count = end - begin;
    const PackedRows rows(a, begin, end, parallel);
    const int most = kernels.tiles_of(rows.most());
    const long steps = (tiles.size() - 1) / most + 1, bytes = most * TILE_COLUMNS * row_bytes;  // of `most` tiles
    const bool few = count <= FEW_ROWS;
    const long block_rows = std::clamp<long>(BYTES_OF_ROWS / row_bytes, FEWEST_ROWS, FEW_ROWS);
    const long blocks = few ? 1 : (count - 1) / block_rows + 1;
    // Parts are not too small for a thread, and enough for many threads.
    const long worth = few ? std::min(BYTES_OF_ITEM, PRODUCTS_OF_ITEM * 4 / count) / bytes : 1;
    const long enough = few ? steps : (ITEMS - 1) / blocks + 1;
    const long parts = std::min((steps - 1) / std::max(1L, worth) + 1, enough);
    parallel.for_each(static_cast<size_t>(blocks * parts), [&](size_t item) {
      const long block = static_cast<long>(item) / parts, part = static_cast<long>(item) % parts;
      multiply(a, rows, Range{0, rows.tiles()}.part(block, blocks), tiles.part(part, parts, most), most);
    });
  }
}

}  // namespace tightbeam
