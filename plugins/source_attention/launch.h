// How SourceAttention's kernels are started.
#pragma once

#include "common/attention_plan.h"
#include "source_attention/arguments.h"

namespace tightbeam {

struct SourceAttentionPlan {
  Launch launch, join;   // `join` runs where splits > 1
  RowStreamPlan stream;  // without matrix units
  bool matrix;           // with them: float16 and bfloat16
  int tiles;             // of 16 queries a block
  int width;             // of a key and of a value that the kernel has room for
  bool aligned;
  int splits, positions;  // of the source, and positions of one split
  unsigned long long workspace_bytes;
};

template <class Float>
SourceAttentionPlan plan_source_attention(const SourceAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int NUMBERS = 16 / sizeof(Float), WARPS = 8, MATRIX_WARPS = 4;
  constexpr unsigned SHARED_BYTES = 48 * 1024;  // beyond it fewer warps a block
  const int queries = a.M * (a.H / a.G);
  SourceAttentionPlan plan = {};
  plan.aligned = a.K % NUMBERS == 0 && a.V % NUMBERS == 0 && aligned_16(a.key) && aligned_16(a.value);
  plan.matrix = sizeof(Float) == 2 && a.K <= 128 && a.V <= 128;
  int blocks, slices = 1;
  if (plan.matrix) {
    plan.width = a.K <= 64 && a.V <= 64 ? 64 : 128;
    plan.tiles = queries > 16 ? 2 : 1;
    blocks = ceil_div(queries, 16 * plan.tiles);
    plan.launch.block = MATRIX_WARPS * 32;
    // Two stages of 16 keys and values a warp; rows are 16 bytes longer than their numbers, against bank conflicts.
    plan.launch.shared_bytes = MATRIX_WARPS * 2 * 2 * 16 * (plan.width + 8) * 2u;
  } else {
    plan.stream = plan_row_stream(sizeof(Float) == 4 && queries > 4 ? 8 : 4, a.K, a.V, NUMBERS, plan.aligned);
    const unsigned bytes = stream_bytes_per_warp(plan.stream, NUMBERS, false);
    int warps = WARPS;
    while (warps > 1 && warps * bytes > SHARED_BYTES) warps /= 2;
    plan.stream.parts = warps;
    blocks = ceil_div(queries, plan.stream.queries);
    slices = ceil_div(a.V, stream_columns(plan.stream, NUMBERS));
    plan.launch.block = warps * 32;
    plan.launch.shared_bytes = warps * bytes;
  }
  const long long all_blocks = static_cast<long long>(a.B) * a.G * blocks * slices;
  plan.splits = plan_splits(all_blocks, 2 * gpu.multiprocessors, a.N, 128);
  plan.positions = ceil_div(ceil_div(a.N, plan.splits), 16) * 16;
  plan.splits = larger(1, ceil_div(a.N, plan.positions > 0 ? plan.positions : 1));
  plan.launch.grid[0] = a.B * a.G * blocks * plan.splits;
  plan.launch.grid[1] = slices;
  plan.launch.grid[2] = 1;
  plan.join = {{a.B * a.M * a.H, 1, 1}, 128, 0};
  if (plan.splits > 1)
    plan.workspace_bytes = sizeof(float) * static_cast<unsigned long long>(plan.splits) * a.B * a.M * a.H * (a.V + 1);
  return plan;
}

}  // namespace tightbeam
