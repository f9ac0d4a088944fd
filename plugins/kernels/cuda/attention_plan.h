// The division of the attention kernels' work, decided on the host: plain structs and arithmetic.
#pragma once

#ifndef __CUDACC_RTC__
#include <type_traits>
#endif

#include "kernels/cuda/launch.h"

namespace tightbeam {

// For RowStream of attention.cuh: queries of a warp, packs of 16 bytes that a lane has of a value row (chunks), lanes
// of a row, and warps that share the rows of a query (parts).
struct RowStreamPlan {
  int queries, chunks, lanes, parts;
  int K_padded;
};

// For beam_attention_tensor_core_kernel: a warp has 8 `halves` queries, keys and values are at most `width` wide, a
// block has `heads` heads, and `parts` warps share the rows of a head. Rows are found `stretch` positions at a time
// (history_rows.cuh), at most `capacity` of them, in shared memory from byte `rows_at` on. Q = H / G, and i / Q is
// i * Q_inverse >> 24.
constexpr int BEAM_TILES_WARPS = 4;
struct BeamTilesPlan {
  int halves, width, heads, parts;
  int stretch, capacity;
  int Q;
  unsigned rows_at, Q_inverse;
};

// For attend_simt of attention_rows.cuh.
constexpr int SIMT_THREADS = 256, SIMT_QUERIES = 16, SIMT_POSITIONS = 32, SIMT_CHUNK = 64;
constexpr int SIMT_COLUMNS = 4 * SIMT_THREADS, SIMT_STRIDE = SIMT_CHUNK + 4;
constexpr unsigned SIMT_SHARED_BYTES =
    4 * ((SIMT_QUERIES + SIMT_POSITIONS) * SIMT_STRIDE + SIMT_QUERIES * (SIMT_POSITIONS + 1));

// For attention_tensor_core.cuh: a block has `tiles` tiles of 16 queries, `steps` steps of 16 positions, and `warps`
// warps with `columns` columns each. The offsets in shared memory are in bytes.
struct TensorCoreShape {
  int tiles, steps, columns, warps;
  int stride;  // numbers from a row to the next in shared memory
  unsigned scores_at, weights_at, state_at, parts_at, bytes;
};

// Where attention over a source writes its result. With one split, that is the outputs. With several, each split writes
// to the workspace: outputs [splits, rows, width], divided by the split's own row sum, and lse [splits, rows].
template <class Float>
struct SplitResult {
  Float* output;
  float* lse;  // or null
  float* workspace;
  int splits;
  long long rows, width;
};

#ifndef __CUDACC_RTC__  // the rest is for the host

// Combines the splits. Grid: one block for each row.
namespace device {
template <class Float>
__global__ void combine_splits_kernel(SplitResult<Float> result);
}

constexpr int ceil_div(long long a, long long b) { return static_cast<int>((a + b - 1) / b); }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int larger(int a, int b) { return a > b ? a : b; }

inline bool aligned_16(const void* pointer) { return reinterpret_cast<unsigned long long>(pointer) % 16 == 0; }

// `numbers` is how many Floats 16 bytes have. `aligned` says that rows are whole packs and aligned to 16 bytes.
inline RowStreamPlan plan_row_stream(int queries, int K, int V, int numbers, bool aligned) {
  constexpr int CHUNKS = 4;  // of the kernel for any width and alignment, with one query at a time
  const int packs = ceil_div(V, numbers), key_packs = ceil_div(K, numbers);
  RowStreamPlan plan = {};
  plan.chunks = aligned && packs <= 32 && key_packs <= 32 ? 1 : CHUNKS;
  plan.queries = plan.chunks == 1 ? queries : 1;
  const int wanted = larger(ceil_div(packs, plan.chunks), ceil_div(key_packs, plan.chunks));
  for (plan.lanes = 1; plan.lanes < 32 && plan.lanes < wanted;) plan.lanes *= 2;
  plan.K_padded = ceil_div(K, numbers) * numbers;
  return plan;
}

constexpr int SPLIT_WAVES = 2;  // of blocks that a split source has at most; this bounds the workspace

// The number of splits of N positions for which the waves of blocks take the least time. A split has `blocks` blocks,
// and `slots` blocks run at once. Writing and reading a split's results takes as long as `overhead` positions.
inline int plan_splits(long long blocks, int slots, int N, int overhead) {
  constexpr int LEAST = 64;  // positions of a split at least
  const auto time = [&](int splits) {
    return static_cast<long long>(ceil_div(blocks * splits, slots)) *
           (ceil_div(N, splits) + (splits > 1 ? overhead : 0));
  };
  int best = 1;
  for (int splits = 2; splits <= N / LEAST && blocks * splits <= SPLIT_WAVES * slots; ++splits)
    if (time(splits) < time(best)) best = splits;
  return best;
}

// How many positions have as many bytes of keys and values as a split's outputs for `queries` queries, written and
// read.
template <class Float>
int split_overhead(int queries, int key_and_value, int V) {
  return static_cast<int>(2 * sizeof(float) * static_cast<unsigned>(queries) * static_cast<unsigned>(V) /
                          (sizeof(Float) * static_cast<unsigned>(larger(1, key_and_value))));
}

// Columns of a value row that one block computes.
inline int stream_columns(const RowStreamPlan& plan, int numbers) { return plan.lanes * plan.chunks * numbers; }

// Shared memory of a warp: its queries (twice with a rotation), its softmaxes and its sums.
inline unsigned stream_bytes_per_warp(const RowStreamPlan& plan, int numbers, bool rotation) {
  const int floats = plan.queries * (plan.K_padded * (rotation ? 2 : 1) + 2 + stream_columns(plan, numbers));
  return static_cast<unsigned>(floats) * 4;
}

inline TensorCoreShape tensor_core_shape(int D, int tiles, int steps, int columns) {
  TensorCoreShape shape = {tiles, steps, columns, ceil_div(D, columns), 0, 0, 0, 0, 0, 0};
  shape.stride = shape.warps * columns + 8;  // an odd number of 16-byte units, against bank conflicts
  shape.scores_at = static_cast<unsigned>(2 * 16 * steps * shape.stride * 2);
  shape.weights_at = shape.scores_at + static_cast<unsigned>(shape.warps * 16 * tiles * 16 * steps * 4);
  shape.state_at = shape.weights_at + static_cast<unsigned>(16 * tiles * (16 * steps + 8) * 2);
  shape.parts_at = shape.state_at + static_cast<unsigned>(3 * 16 * tiles * 4);
  shape.bytes = shape.parts_at + static_cast<unsigned>(16 + shape.warps * columns / 8 * 4);
  return shape;
}

// The largest shape for `queries` queries that fits the GPU's shared memory; warps = 0 if no shape fits.
inline TensorCoreShape plan_tensor_core(int D, int queries, const Gpu& gpu) {
  constexpr int MAX_WARPS = 16, COLUMNS[] = {64, 128};
  for (int columns : COLUMNS) {
    if (ceil_div(D, columns) > MAX_WARPS) continue;
    for (int tiles = queries > 16 && columns == 64 ? 2 : 1; tiles > 0; --tiles)
      for (int steps = columns == 64 ? 2 : 1; steps > 0; --steps) {
        const TensorCoreShape shape = tensor_core_shape(D, tiles, steps, columns);
        if (shape.bytes <= gpu.shared_bytes) return shape;
      }
  }
  return {};
}

// Calls launch(tiles, steps, columns, rotated) with the shape as compile-time constants.
template <class Launch>
void with_tensor_core_shape(const TensorCoreShape& shape, bool rotated, const Launch& launch) {
  const auto with_rotation = [&](auto tiles, auto steps, auto columns) {
    rotated ? launch(tiles, steps, columns, std::true_type()) : launch(tiles, steps, columns, std::false_type());
  };
  constexpr std::integral_constant<int, 1> one = {};
  constexpr std::integral_constant<int, 2> two = {};
  constexpr std::integral_constant<int, 64> narrow = {};
  if (shape.columns == 128)
    with_rotation(one, one, std::integral_constant<int, 128>());
  else if (shape.tiles == 2)
    shape.steps == 2 ? with_rotation(two, two, narrow) : with_rotation(two, one, narrow);
  else
    shape.steps == 2 ? with_rotation(one, two, narrow) : with_rotation(one, one, narrow);
}

#endif

}  // namespace tightbeam
