// Products of many rows of integers by AMX, whose instructions multiply 16 rows of 64 bytes by 64 x 16 weights. The
// weights are in the order that these read. A tile of rows is up to 32 rows and a tile of columns 16, so that four
// registers have the sums of two by two. Compiled for v4_amx alone, and under the rule of cmake/InstructionSets.cmake.
#include <immintrin.h>

#include "kernels/cpu/aligned.h"
#include "kernels/cpu/quantized.h"

namespace tightbeam {
namespace {

constexpr int REGISTER_ROWS = 16, REGISTER_BYTES = 64;  // of an AMX register at most
static_assert(AMX_GROUPS * GROUP == REGISTER_BYTES && AMX_ROWS == 2 * REGISTER_ROWS);

// The sizes of the registers for a tile of rows, as LDTILECFG reads them: sums in 0 to 3, rows in 4 and 5, weights in 6
// and 7.
struct alignas(LINE) Sizes {
  unsigned char palette = 1, start = 0, reserved[14] = {};
  unsigned short bytes[16] = {};
  unsigned char rows[16] = {};
};

struct AllSizes {
  Sizes of[AMX_ROWS + 1];

  constexpr AllSizes() : of{} {
    for (int count = 1; count <= AMX_ROWS; ++count) {
      const int upper = count < REGISTER_ROWS ? count : REGISTER_ROWS, lower = count - upper;
      const int of_register[] = {upper, upper, lower, lower, upper, lower, REGISTER_ROWS, REGISTER_ROWS};
      for (int i = 0; i < 8; ++i) {
        of[count].rows[i] = static_cast<unsigned char>(of_register[i]);
        of[count].bytes[i] = of_register[i] == 0 ? 0 : REGISTER_BYTES;
      }
    }
  }
};
constexpr AllSizes SIZES;

template <bool LOWER, int TILES>
void multiply_tiles(const Multiplication& m) {
  constexpr long STRIDE = TILES * REGISTER_BYTES;  // of the sums of a row
  const char* rows = static_cast<const char*>(m.packed);
  const unsigned char* weights = m.weights;
  const unsigned char* next = m.next;
  const long groups = m.groups, tile_bytes = m.tile_bytes, next_step = AMX_GROUPS * m.next_step;
  const long row_step = m.rows * long{REGISTER_BYTES};
  int* const lower = m.products + REGISTER_ROWS * TILES * TILE_COLUMNS;
  if (m.start != nullptr) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (LOWER) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, m.products, STRIDE);
    if constexpr (TILES == 2) _tile_loadd(1, m.products + TILE_COLUMNS, STRIDE);
    if constexpr (LOWER) {
      _tile_loadd(2, lower, STRIDE);
      if constexpr (TILES == 2) _tile_loadd(3, lower + TILE_COLUMNS, STRIDE);
    }
  }
  for (long k = 0; k < groups; k += AMX_GROUPS) {
    _tile_loadd(6, weights, TILE_STEP);
    _tile_loadd(4, rows, REGISTER_BYTES);
    _tile_dpbsud(0, 4, 6);
    if constexpr (LOWER) {
      _tile_loadd(5, rows + REGISTER_ROWS * REGISTER_BYTES, REGISTER_BYTES);
      _tile_dpbsud(2, 5, 6);
    }
    if constexpr (TILES == 2) {
      _tile_loadd(7, weights + tile_bytes, TILE_STEP);
      _tile_dpbsud(1, 4, 7);
      if constexpr (LOWER) _tile_dpbsud(3, 5, 7);
    }
    for (long at = 0; at < next_step; at += LINE)
      for (int tile = 0; tile < TILES; ++tile) __builtin_prefetch(next + tile * tile_bytes + at, 0, 3);
    next += next_step;
    rows += row_step;
    weights += AMX_GROUPS * TILE_STEP;
  }
  _tile_stored(0, m.products, STRIDE);
  if constexpr (TILES == 2) _tile_stored(1, m.products + TILE_COLUMNS, STRIDE);
  if constexpr (LOWER) {
    _tile_stored(2, lower, STRIDE);
    if constexpr (TILES == 2) _tile_stored(3, lower + TILE_COLUMNS, STRIDE);
  }
  // The first terms are added here: a register that is loaded from numbers just written waits for all earlier writes.
  if (m.start != nullptr)
    for (int row = 0; row < m.rows; ++row)
      for (int tile = 0; tile < TILES; ++tile) {
        int* sums = m.products + (row * TILES + tile) * TILE_COLUMNS;
        _mm512_storeu_si512(sums, _mm512_add_epi32(_mm512_loadu_si512(sums), _mm512_set1_epi32(m.start[row])));
      }
}

}  // namespace

// The rows of 64 bytes side by side, then the next 64 bytes of each.
void pack_v4_amx(const signed char* integers, long width, int rows, long groups, void* packed) {
  char* to = static_cast<char*>(packed);
  for (int row = 0; row < rows; ++row, to += REGISTER_BYTES)
    for (long k = 0; k < groups / AMX_GROUPS; ++k)
      _mm512_storeu_si512(to + k * rows * REGISTER_BYTES,
                          _mm512_loadu_si512(integers + row * width + k * REGISTER_BYTES));
}

void multiply_v4_amx(const Multiplication& m) {
  __asm__ volatile("" ::: "memory");  // GCC does not know that loading a register reads memory
  _tile_loadconfig(&SIZES.of[m.rows]);
  if (m.rows > REGISTER_ROWS)
    m.tiles == 1 ? multiply_tiles<true, 1>(m) : multiply_tiles<true, 2>(m);
  else
    m.tiles == 1 ? multiply_tiles<false, 1>(m) : multiply_tiles<false, 2>(m);
  _tile_release();  // so that no switch of threads saves the registers
}

}  // namespace tightbeam
