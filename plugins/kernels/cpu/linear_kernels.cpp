// Compiled once for each instruction set, like math_kernels.cpp, and under the same rule: only the table may have
// external linkage.
#include "kernels/cpu/linear.h"
#include "kernels/cpu/vectors.h"

namespace tightbeam {
namespace {

constexpr int VECTORS = TILE_COLUMNS / LANES;                          // registers of a row's sums for a tile
constexpr int MOST_SUMS = REGISTERS == 32 ? 24 : LANES == 8 ? 12 : 8;  // registers of sums
constexpr int MOST_ROWS = LANES == 16 ? 12 : MOST_SUMS / VECTORS;
constexpr int MOST_TILES = 4;

constexpr bool fits(int height, int tiles) { return height * tiles * VECTORS <= MOST_SUMS; }

int tiles_of(int height) {
  int tiles = MOST_TILES;
  while (tiles > 1 && !fits(height, tiles)) tiles /= 2;
  return tiles;
}

typedef float Four __attribute__((vector_size(16)));

// Transposes four numbers of four rows.
inline void pack_block(const float* rows, long step, int height, float* packed) {
  const Columns<Four> columns = columns_of(load_as<Four>(rows), load_as<Four>(rows + step),
                                           load_as<Four>(rows + 2 * step), load_as<Four>(rows + 3 * step));
  for (int i = 0; i < 4; ++i) store_as(packed + i * height, columns.of[i]);
}

void pack(const float* rows, long step, int height, long count, float* packed) {
  const int whole_rows = height / 4 * 4;
  const long whole = count / 4 * 4;
  for (long x = 0; x < whole; x += 4) {
    for (int row = 0; row < whole_rows; row += 4)
      pack_block(rows + row * step + x, step, height, packed + x * height + row);
    for (int row = whole_rows; row < height; ++row)
      for (int i = 0; i < 4; ++i) packed[(x + i) * height + row] = rows[row * step + x + i];
  }
  for (long x = whole; x < count; ++x)
    for (int row = 0; row < height; ++row) packed[x * height + row] = rows[row * step + x];
}

template <int ROWS, int TILES>
void multiply_rows(const TileProduct& p) {
  constexpr int COUNT = TILES * VECTORS;
  Vector sums[ROWS][COUNT];
  TIGHTBEAM_UNROLL
  for (int row = 0; row < ROWS; ++row) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) sums[row][i] = p.first ? Vector{} : load(p.sums + (row * COUNT + i) * LANES);
  }
  const float* rows = p.rows;
  const float* weights = p.weights;
  const float* next = p.next;
  const long tile_step = p.tile_step, every = p.every;
  for (long left = p.count; left > 0;) {
    TIGHTBEAM_UNROLL
    for (int tile = 0; tile < TILES; ++tile) __builtin_prefetch(next + tile * tile_step, 0, 2);
    next += TILE_COLUMNS;
    const long steps = every < left ? every : left;
    left -= steps;
    for (long step = 0; step < steps; ++step) {
      Vector columns[COUNT];
      TIGHTBEAM_UNROLL
      for (int i = 0; i < COUNT; ++i) columns[i] = load(weights + i / VECTORS * tile_step + i % VECTORS * LANES);
      TIGHTBEAM_UNROLL
      for (int row = 0; row < ROWS; ++row) {
        const Vector number = broadcast(rows[row]);
        TIGHTBEAM_UNROLL
        for (int i = 0; i < COUNT; ++i) sums[row][i] += number * columns[i];
      }
      rows += ROWS;
      weights += TILE_COLUMNS;
    }
  }
  TIGHTBEAM_UNROLL
  for (int row = 0; row < ROWS; ++row) {
    TIGHTBEAM_UNROLL
    for (int i = 0; i < COUNT; ++i) store(p.sums + (row * COUNT + i) * LANES, sums[row][i]);
  }
}

typedef void (*MultiplyRows)(const TileProduct&);

template <int ROWS, int TILES>
constexpr MultiplyRows product_of() {
  if constexpr (fits(ROWS, TILES))
    return multiply_rows<ROWS, TILES>;
  else
    return nullptr;
}

template <int TILES>
struct ByRows {
  MultiplyRows of[13] = {nullptr,
                         product_of<1, TILES>(),
                         product_of<2, TILES>(),
                         product_of<3, TILES>(),
                         product_of<4, TILES>(),
                         product_of<5, TILES>(),
                         product_of<6, TILES>(),
                         product_of<7, TILES>(),
                         product_of<8, TILES>(),
                         product_of<9, TILES>(),
                         product_of<10, TILES>(),
                         product_of<11, TILES>(),
                         product_of<12, TILES>()};
};

constexpr ByRows<1> BY_ONE;
constexpr ByRows<2> BY_TWO;
constexpr ByRows<4> BY_FOUR;

// The tiles that are left at the end come one by one, or two by two.
void multiply(const TileProduct& product) {
  if (product.tiles == 4) return BY_FOUR.of[product.height](product);
  if (product.tiles == 2) return BY_TWO.of[product.height](product);
  BY_ONE.of[product.height](product);
}

void finish(const TileOutput& output) {
  const TileOutput o = output;  // a copy, so that the compiler knows that no store changes it
  for (int row = 0; row < o.rows; ++row) {
    const float* sums = o.sums + row * static_cast<long>(o.stride);
    const float* addend = o.addend == nullptr ? nullptr : o.addend + row * o.output_step;
    float* to = o.output + row * o.output_step;
    int column = 0;
    for (; column + LANES <= o.columns; column += LANES) {
      const Vector added = addend == nullptr ? broadcast(o.addend_of_all) : load(addend + column);
      store(to + column, load(sums + column) + load(o.bias + column) + added);
    }
    const int left = o.columns - column;
    if (left == 0) continue;
    const Vector added = addend == nullptr ? broadcast(o.addend_of_all) : load_some(addend + column, left);
    store_some(to + column, load_some(sums + column, left) + load_some(o.bias + column, left) + added, left);
  }
}

}  // namespace

extern const LinearKernels TIGHTBEAM_JOIN(LINEAR_, TIGHTBEAM_ISA);
const LinearKernels TIGHTBEAM_JOIN(LINEAR_, TIGHTBEAM_ISA) = {
    TIGHTBEAM_TEXT(TIGHTBEAM_ISA), MOST_ROWS, tiles_of, pack, multiply, finish,
};

}  // namespace tightbeam
