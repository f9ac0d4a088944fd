// Launch plan of SourceAttention's kernels.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "ops/source_attention/arguments.h"

namespace tightbeam {

namespace device {
template <class Float, int QUERIES, int CHUNKS>
__global__ void source_attention_stream_kernel(SourceAttentionArguments<Float> a, RowStreamPlan plan, int positions,
                                               SplitResult<Float> result);
template <class Half, int TILES, int WIDTH>
__global__ void source_attention_tensor_core_kernel(SourceAttentionArguments<Half> a, int positions, bool aligned,
                                                    SplitResult<Half> result);
}  // namespace device

constexpr int SOURCE_BLOCKS = 2;  // blocks of a multiprocessor that use its share of the memory bandwidth

struct SourceAttentionPlan {
  Launch launch, combine;  // `combine` runs if splits > 1
  RowStreamPlan stream;    // of the SIMT kernel
  bool tensor_core;        // true: the tensor-core kernel runs, for float16 and bfloat16
  int tiles;               // of 16 queries in a block
  int width;               // of the tensor-core kernel: the largest K and V
  bool aligned;
  int splits, positions;  // splits of the source, and positions of a split
  unsigned long long workspace_bytes;
};

template <class Float>
SourceAttentionPlan plan_source_attention(const SourceAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int NUMBERS = 16 / sizeof(Float), WARPS = 8, TENSOR_CORE_WARPS = 4;
  constexpr unsigned SHARED_BYTES = 48 * 1024;  // a block gets fewer warps if it needs more
  const int queries = a.M * (a.H / a.G);
  SourceAttentionPlan plan = {};
  plan.aligned =
      a.K % NUMBERS == 0 && a.V % NUMBERS == 0 && aligned_16(a.query) && aligned_16(a.key) && aligned_16(a.value);
  const bool plain = a.softcap == 0 && a.key_bias == nullptr;
  plan.tensor_core = sizeof(Float) == 2 && gpu.runs_tensor_core_kernels() && plain && a.K <= 128 && a.V <= 128;
  int blocks, slices = 1;
  if (plan.tensor_core) {
    plan.width = a.K <= 64 && a.V <= 64 ? 64 : 128;
    plan.tiles = queries > 16 && plan.width == 64 ? 2 : 1;  // two tiles of 128 numbers need more than 255 registers
    blocks = ceil_div(queries, 16 * plan.tiles);
    plan.launch.block = TENSOR_CORE_WARPS * 32;
    // Each warp has two stages of 16 keys and values. Rows are padded by 16 bytes against bank conflicts.
    plan.launch.shared_bytes = TENSOR_CORE_WARPS * 2 * 2 * 16 * (plan.width + 8) * 2u;
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
  const int block_queries = smaller(queries, plan.tensor_core ? 16 * plan.tiles : plan.stream.queries);
  plan.splits = plan_splits(all_blocks, SOURCE_BLOCKS * gpu.multiprocessors, a.N,
                            split_overhead<Float>(block_queries, a.K + a.V, a.V));
  plan.positions = ceil_div(ceil_div(a.N, plan.splits), 16) * 16;
  plan.splits = larger(1, ceil_div(a.N, plan.positions > 0 ? plan.positions : 1));
  plan.launch.grid[0] = a.B * a.G * blocks * plan.splits;
  plan.launch.grid[1] = slices;
  plan.launch.grid[2] = 1;
  plan.combine = {{a.B * a.M * a.H, 1, 1}, 128, 0};
  if (plan.splits > 1)
    plan.workspace_bytes = sizeof(float) * static_cast<unsigned long long>(plan.splits) * a.B * a.M * a.H * (a.V + 1);
  return plan;
}

template <class Float>
unsigned long long source_attention_workspace(const SourceAttentionArguments<Float>& a, const Gpu& gpu) {
  return plan_source_attention(a, gpu).workspace_bytes;
}
// Each split needs workspace for its queries, and SPLIT_WAVES bounds the blocks of a split source.
template <class Float>
unsigned long long source_attention_most_workspace(const SourceAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int MOST_QUERIES = 32;  // of a block
  return sizeof(float) * SPLIT_WAVES * SOURCE_BLOCKS * gpu.multiprocessors * MOST_QUERIES * (a.V + 1);
}

template <class Float, class Launcher>
void launch_source_attention(const SourceAttentionArguments<Float>& a, const Gpu& gpu, void* workspace,
                             const Launcher& launcher) {
  using namespace device;
  const SourceAttentionPlan plan = plan_source_attention(a, gpu);
  const SplitResult<Float> result = {
      a.output, a.lse, static_cast<float*>(workspace), plan.splits, static_cast<long long>(a.B) * a.M * a.H, a.V};
  const auto stream = [&](auto kernel) { launcher(kernel, plan.launch, a, plan.stream, plan.positions, result); };
  if constexpr (sizeof(Float) == 2) {
    const auto tensor_core = [&](auto kernel) {
      launcher(kernel, plan.launch, a, plan.positions, plan.aligned, result);
    };
    if (plan.tensor_core && plan.width == 64)
      plan.tiles == 1 ? tensor_core(Kernel<source_attention_tensor_core_kernel<Float, 1, 64>>())
                      : tensor_core(Kernel<source_attention_tensor_core_kernel<Float, 2, 64>>());
    else if (plan.tensor_core)
      tensor_core(Kernel<source_attention_tensor_core_kernel<Float, 1, 128>>());
  }
  if (!plan.tensor_core) {
    constexpr int MANY = sizeof(Float) == 2 ? 4 : 8;
    if (plan.stream.chunks > 1)
      stream(Kernel<source_attention_stream_kernel<Float, 1, 4>>());
    else if (plan.stream.queries > 4)
      stream(Kernel<source_attention_stream_kernel<Float, MANY, 1>>());
    else
      stream(Kernel<source_attention_stream_kernel<Float, 4, 1>>());
  }
  if (plan.splits > 1) launcher(Kernel<combine_splits_kernel<Float>>(), plan.combine, result);
}

}  // namespace tightbeam
