// Rows are packed in tiles, each of as many rows as the registers hold sums for. The inner loop multiplies a tile of
// rows by one or two tiles of columns, over all of K. An item is a block of rows times a range of columns. In an item,
// some tiles of columns stay in the second cache while all tiles of rows are multiplied by them, and the next ones are
// prefetched meanwhile. Few rows are one block, so that each weight is read from memory once.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized.h"
#include "kernels/cpu/range.h"
#include "kernels/cpu/workspaces.h"
#include "ops/quantized_matmul/arguments.h"

namespace tightbeam {
namespace {

constexpr int FEW_ROWS = 96;                  // rows that are one block
constexpr long BYTES_OF_ROWS = 256 << 10;     // of a block, if there are several: they fit the second cache
constexpr long BYTES_OF_WEIGHTS = 128 << 10;  // in the second cache at a time, while as many are prefetched
constexpr long BYTES_OF_PART = 24 << 10;      // of a part, the next part and the rows, in the first cache
constexpr long BYTES_AT_ONCE = 2 << 20;       // of rows that are packed at a time
constexpr long BYTES_TO_PACK = 32 << 10;      // of an item that packs rows
constexpr long PRODUCTS_OF_ITEM = 1 << 21;
constexpr long ITEMS = 16;         // at least, for many rows
constexpr long AHEAD = 4096;       // bytes to prefetch ahead, with a single tile of rows
constexpr long SMALL_TILE = 8192;  // of a tile of 4 bits below which the next tiles are prefetched instead
constexpr int MOST_ROWS = 32;      // of a tile at most, on any processor
constexpr int MOST_PARTED = 2;     // tiles of rows for which K is split into parts; more tiles are as fast without

bool is_int4(const QuantizedMatMulArguments<float>& a) { return a.block_scale != nullptr; }

const Quantized& kernels_of(const QuantizedMatMulArguments<float>& a) {
  return is_int4(a) ? quantized() : quantized_matrices(a.R * long{a.digits}, a.groups / a.blocks);
}

// Groups in TILE_STEP bytes of weights.
int groups_of_step(const QuantizedMatMulArguments<float>& a) { return is_int4(a) ? 2 : 1; }

// Some rows of the call, packed in tiles of rows. The digits of a row are rows here, side by side in one tile.
class PackedRows {
 public:
  PackedRows(const QuantizedMatMulArguments<float>& a, const Quantized& kernels, long begin, long end, int most_rows,
             const Parallel& parallel)
      : kernels_(kernels),
        a_(a),
        begin_(begin),
        rows_(static_cast<int>(end - begin) * a.digits),
        tiles_((rows_ - 1) / most_rows + 1),
        each_(((rows_ / a.digits - 1) / tiles_ + 1) * a.digits),
        bytes_(aligned<unsigned char>(static_cast<size_t>(rows_) * a.groups * kernels_.group_bytes)),
        corrections_(static_cast<size_t>(rows_) * (is_int4(a) ? a.groups / INT4_GROUPS : a.blocks)) {
    const int items = static_cast<int>(std::min<long>(tiles_, rows_ * long{GROUP} * a.groups / BYTES_TO_PACK + 1));
    parallel.for_each(items, [&](size_t item) {
      const long i = static_cast<long>(item);
      for (int tile = static_cast<int>(tiles_ * i / items); tile < tiles_ * (i + 1) / items; ++tile) pack(tile);
    });
  }

  const Quantized& kernels() const { return kernels_; }
  int tiles() const { return tiles_; }
  int count(int tile) const { return first(tile + 1) - first(tile); }
  long row(int tile) const { return begin_ + undigited(first(tile)); }
  int rows(int tile) const { return undigited(count(tile)); }
  const unsigned char* packed(int tile, long group) const { return bytes_.get() + offset(tile, group); }
  // Of a block of a row, or of 32 weights of 4 bits; the pairs of digits of these have one each.
  const int* corrections(int tile, int block) const {
    return corrections_.data() + static_cast<size_t>(block) * rows_ + first(tile) / (is_int4(a_) ? 2 : 1);
  }
  long corrections_step() const { return rows_; }

 private:
  int first(int tile) const { return std::min(rows_, tile * each_); }
  int undigited(int rows) const { return a_.digits == 2 ? rows / 2 : rows; }
  long offset(int tile, long group) const {
    return (static_cast<long>(first(tile)) * a_.groups + group * count(tile)) * kernels_.group_bytes;
  }

  void pack(int tile) {
    const long width = long{GROUP} * a_.groups, block_width = width / a_.blocks;
    const signed char* rows = a_.rows + row(tile) * a_.digits * a_.row_step;
    kernels_.pack(rows, a_.row_step, count(tile), a_.groups, bytes_.get() + offset(tile, 0));
    if (is_int4(a_)) {
      for (int i = 0; i < count(tile); i += 2)
        kernels_.int4_corrections(rows + i * a_.row_step, rows + (i + 1) * a_.row_step, a_.groups / INT4_GROUPS,
                                  corrections_.data() + (first(tile) + i) / 2, rows_);
      return;
    }
    for (int block = 0; block < a_.blocks; ++block)
      for (int i = 0; i < count(tile); ++i)
        corrections_[static_cast<size_t>(block) * rows_ + first(tile) + i] =
            kernels_.correction(rows + i * a_.row_step + block * block_width, block_width);
  }

  const Quantized& kernels_;
  const QuantizedMatMulArguments<float>& a_;
  long begin_;
  int rows_, tiles_, each_;  // each_: rows of a tile, a multiple of the digits; the last one may have fewer
  Aligned<unsigned char> bytes_;
  std::vector<int> corrections_;
};

// A part of a block of K.
struct Part {
  int block;
  Range groups;
  long steps;         // of TILE_STEP bytes of weights
  long first;         // bytes of a tile before it
  bool begins, ends;  // whether it is the first, and the last, of the block
};

// How an item divides its work.
struct Plan {
  int most;      // tiles of columns that are multiplied at once
  int together;  // tiles of columns in the second cache
  bool parted;   // whether blocks of K have parts, of which one stays in the first cache while all tiles of rows are
                 // multiplied by it
  std::vector<Part> parts;  // of all blocks, in order
};

// The parts of all blocks, each of which has `count`.
std::vector<Part> parts_of(const QuantizedMatMulArguments<float>& a, int count, int groups_at_once) {
  const int block_groups = a.groups / a.blocks, per_step = groups_of_step(a);
  std::vector<Part> parts;
  for (int block = 0; block < a.blocks; ++block) {
    const Range all{block * block_groups, (block + 1) * block_groups};
    for (int i = 0; i < count; ++i) {
      const Range groups = all.part(i, count, is_int4(a) ? INT4_GROUPS : groups_at_once);
      parts.push_back(
          {block, groups, groups.size() / per_step, groups.begin / per_step * long{TILE_STEP}, i == 0, i + 1 == count});
    }
  }
  return parts;
}

// Prefetches the memory of products, so that their multiplication does not wait for it at its end.
void prefetch(const float* products, long step, int rows, int columns) {
  constexpr int NUMBERS = LINE / sizeof(float);
  for (int row = 0; row < rows; ++row, products += step)
    for (int first = 0; first < columns; first += NUMBERS) __builtin_prefetch(products + first, 1);
}

// Where products go: those of row 0 and column 0, and the distance to the next row's.
struct Products {
  float* data;
  long step;
  bool cached;  // the memory is in the second cache already
};

// Multiplies tiles of rows by tiles of columns; `to` begins with the first of both. The loops have no divisions.
void multiply(const QuantizedMatMulArguments<float>& a, const PackedRows& rows, Range row_tiles, Range tiles,
              const Plan& plan, Products to) {
  const Quantized& kernels = rows.kernels();
  const bool int4 = is_int4(a);
  const long tile_bytes = static_cast<long>(a.groups / groups_of_step(a)) * TILE_STEP;
  const long tile_scales = static_cast<long>(a.groups / INT4_GROUPS) * TILE_COLUMNS;
  const int row_tile_count = row_tiles.size();
  const long step = (TILE_STEP - 1) / row_tile_count + 1;
  alignas(LINE) int sums[MOST_PARTED][MOST_ROWS * 2 * TILE_COLUMNS];
  const auto multiply_tile = [&](const Part& part, int index, int tile, int count) {
    const int row_tile = row_tiles.begin + index, first = tile * TILE_COLUMNS;
    const int stride = count * TILE_COLUMNS, columns = std::min(stride, a.Y - first);
    const unsigned char* weights = a.weights + tile * tile_bytes + part.first;
    // With one tile of rows, prefetch a little ahead; else the next part, or the same part of the next tiles.
    const bool over = part.groups.end == a.groups;
    const long ahead = row_tile_count == 1 ? (int4 && tile_bytes < SMALL_TILE ? count * tile_bytes : AHEAD)
                       : plan.parted       ? part.steps * TILE_STEP + (over ? (count - 1) * tile_bytes : 0)
                                           : plan.together * tile_bytes;
    int* products = sums[plan.parted ? index : 0];
    const long row = rows.row(row_tile);
    float* output = to.data + (row - rows.row(row_tiles.begin)) * to.step + (first - tiles.begin * long{TILE_COLUMNS});
    if (part.ends && !to.cached) prefetch(output, to.step, rows.rows(row_tile), columns);
    Multiplication m{};
    m.packed = rows.packed(row_tile, part.groups.begin);
    m.rows = rows.count(row_tile);
    m.tiles = count;
    m.weights = weights;
    m.tile_bytes = tile_bytes;
    m.groups = part.groups.size();
    m.start = part.begins ? rows.corrections(row_tile, part.block) : nullptr;
    m.products = products;
    m.next = weights + ahead + index * step * part.steps;
    m.next_step = step;
    if (int4) {
      const int first_block = part.groups.begin / INT4_GROUPS;
      m.block_scale = a.block_scale + tile * tile_scales + first_block * TILE_COLUMNS;
      m.block_scale_step = tile_scales;
      m.corrections = rows.corrections(row_tile, first_block);
      m.corrections_step = rows.corrections_step();
      kernels.multiply_int4(m);
    } else {
      kernels.multiply(m);
    }
    if (!part.ends) return;
    kernels.scale({products, stride, rows.rows(row_tile), columns, int4 ? 0 : a.digits,
                   a.row_scale + row * a.row_scale_step + part.block, a.row_scale_step,
                   a.scale + static_cast<long>(part.block) * a.Y + first, part.block == 0, part.block + 1 == a.blocks,
                   a.bias + first, a.activation, a.addend == nullptr ? nullptr : a.addend + row * a.Y + first,
                   a.addend_of_all, output, to.step});
  };
  for (int from = tiles.begin; from < tiles.end; from += plan.together) {
    const int to = std::min(tiles.end, from + plan.together);
    for (const Part& part : plan.parts)
      for (int index = 0; index < row_tile_count; ++index)
        for (int tile = from; tile < to; tile += plan.most)
          multiply_tile(part, index, tile, std::min(plan.most, to - tile));
  }
}

// Multiplies all rows by all columns. An item is a block of rows and a range of columns, a multiple of `whole` tiles;
// `visit` multiplies it by a plan.
template <class Visit>
void for_each_range(const QuantizedMatMulArguments<float>& a, int whole, const Parallel& parallel, const Visit& visit) {
  const Quantized& kernels = kernels_of(a);
  const int most = kernels.rows_of_two > 0 ? 2 : 1;
  const int most_rows = is_int4(a) ? kernels.int4_rows : most == 2 ? kernels.rows_of_two : kernels.rows_of_one;
  const int per_byte = groups_of_step(a);
  const long width = long{GROUP} * a.groups, bytes = most * TILE_COLUMNS * width / per_byte;  // of `most` tiles
  const Range tiles{0, (a.Y - 1) / TILE_COLUMNS + 1};
  const int step = std::max(most, whole);
  const long steps = (tiles.size() - 1) / step + 1;
  const long runs = (a.R * long{a.digits} - 1) / std::max<long>(FEW_ROWS, BYTES_AT_ONCE / width) + 1;
  for (long run = 0; run < runs; ++run) {
    const long begin = a.R * run / runs, end = a.R * (run + 1) / runs, count = (end - begin) * a.digits;
    const PackedRows rows(a, kernels, begin, end, most_rows, parallel);
    const bool few = count <= FEW_ROWS;
    const long blocks = few ? 1 : (count - 1) / std::max<long>(FEW_ROWS, BYTES_OF_ROWS / width) + 1;
    const long together = few ? 1 : std::max(1L, BYTES_OF_WEIGHTS / bytes);  // times `most` tiles
    const long fitting = BYTES_OF_PART / (2L * most * TILE_STEP / per_byte + rows.count(0) * kernels.group_bytes);
    const int split = rows.tiles() == MOST_PARTED ? static_cast<int>((a.groups / a.blocks - 1) / fitting + 1) : 1;
    const Plan plan{most, static_cast<int>(together) * most, split > 1, parts_of(a, split, kernels.groups_at_once)};
    // Parts are not too small for a thread, and enough for many threads.
    const long worth = few ? std::min(BYTES_OF_WEIGHTS, PRODUCTS_OF_ITEM / count) / bytes : together;
    const long enough = few ? steps : (ITEMS - 1) / blocks + 1;
    const long parts = std::min((steps - 1) / std::max(1L, worth * most / step) + 1, enough);
    parallel.for_each(static_cast<size_t>(blocks * parts), [&](size_t item) {
      const long block = static_cast<long>(item) / parts, part = static_cast<long>(item) % parts;
      visit(rows, Range{0, rows.tiles()}.part(block, blocks), tiles.part(part, parts, step), plan);
    });
  }
}

}  // namespace

void quantized_matmul(const QuantizedMatMulArguments<float>& a, const Parallel& parallel) {
  for_each_range(a, 1, parallel, [&](const PackedRows& rows, Range row_tiles, Range tiles, const Plan& plan) {
    float* products = a.products + rows.row(row_tiles.begin) * a.products_step + tiles.begin * long{TILE_COLUMNS};
    multiply(a, rows, row_tiles, tiles, plan, {products, a.products_step, false});
  });
}

void quantized_matmul_by_blocks(const QuantizedMatMulArguments<float>& a, int columns, const UseProducts& use,
                                const Parallel& parallel) {
  const int whole = columns / TILE_COLUMNS;
  Workspaces workspaces(a.R * long{columns});
  for_each_range(a, whole, parallel, [&](const PackedRows& rows, Range row_tiles, Range tiles, const Plan& plan) {
    const long row = rows.row(row_tiles.begin);
    const int count = static_cast<int>(rows.row(row_tiles.end) - row);
    Numbers products = workspaces.take();
    for (int from = tiles.begin; from < tiles.end; from += whole) {
      const int first = from * TILE_COLUMNS;
      multiply(a, rows, row_tiles, {from, std::min(from + whole, tiles.end)}, plan, {products.get(), columns, true});
      use({row, count, first, std::min(columns, a.Y - first), products.get(), columns});
    }
    workspaces.release(std::move(products));
  });
}

}  // namespace tightbeam
