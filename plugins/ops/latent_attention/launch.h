// How LatentAttention's kernels are started.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "ops/latent_attention/arguments.h"

namespace tightbeam {

namespace device {
template <class Float>
__global__ void latent_attention_plain_kernel(LatentAttentionArguments<Float> a, int positions,
                                              SplitResult<Float> result);
template <class Half, int TILES, int STEPS, int COLUMNS>
__global__ void latent_attention_matrix_kernel(LatentAttentionArguments<Half> a, MatrixShape shape, int positions,
                                               bool aligned, SplitResult<Half> result);
}

struct LatentAttentionPlan {
  Launch launch, join;  // `join` runs where splits > 1
  MatrixShape matrix;   // no warps: without matrix units
  bool aligned;
  int queries;            // of a block
  int splits, positions;  // of the source, and positions of one split
  unsigned long long workspace_bytes;
};

template <class Float>
LatentAttentionPlan plan_latent_attention(const LatentAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int NUMBERS = 16 / sizeof(Float);
  const int D = a.G * a.K, queries = a.M * a.H;
  LatentAttentionPlan plan = {};
  plan.aligned = a.K % NUMBERS == 0 && aligned_16(a.states);
  if (sizeof(Float) == 2 && turns_fragments(a.K, a.rotary)) plan.matrix = plan_matrix(D, queries, gpu);
  const bool matrix = plan.matrix.warps > 0;
  plan.queries = matrix ? 16 * plan.matrix.tiles : PLAIN_QUERIES;
  const int blocks = ceil_div(queries, plan.queries), slices = matrix ? 1 : ceil_div(D, PLAIN_COLUMNS);
  // A block fills a multiprocessor; splits cost a second pass over their outputs.
  plan.splits = plan_splits(static_cast<long long>(a.B) * blocks * slices, gpu.multiprocessors, a.N, 128);
  plan.positions = larger(32, ceil_div(ceil_div(a.N, plan.splits), 32) * 32);
  plan.splits = larger(1, ceil_div(a.N, plan.positions));
  plan.launch = {{a.B * blocks * plan.splits, slices, 1},
                 matrix ? plan.matrix.warps * 32 : PLAIN_THREADS,
                 matrix ? plan.matrix.bytes : PLAIN_SHARED_BYTES};
  plan.join = {{a.B * a.M * a.H, 1, 1}, 128, 0};
  if (plan.splits > 1)
    plan.workspace_bytes = sizeof(float) * static_cast<unsigned long long>(plan.splits) * a.B * queries * (D + 1);
  return plan;
}

template <class Float>
unsigned long long latent_attention_workspace(const LatentAttentionArguments<Float>& a, const Gpu& gpu) {
  return plan_latent_attention(a, gpu).workspace_bytes;
}
// A split needs the room of its queries, and there are splits only where they are at most the blocks that are wanted.
template <class Float>
unsigned long long latent_attention_most_workspace(const LatentAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int MOST_QUERIES = 32;  // of a block
  return sizeof(float) * 1ull * gpu.multiprocessors * MOST_QUERIES * (a.G * a.K + 1);
}

template <class Float, class Start>
void start_latent_attention(const LatentAttentionArguments<Float>& a, const Gpu& gpu, void* workspace,
                            const Start& start) {
  using namespace device;
  const LatentAttentionPlan plan = plan_latent_attention(a, gpu);
  const SplitResult<Float> result = {a.output, a.lse, static_cast<float*>(workspace), plan.splits,
                                     static_cast<long long>(a.B) * a.M * a.H, a.G * a.K};
  const MatrixShape& shape = plan.matrix;
  if (shape.warps == 0) {
    start(Kernel<latent_attention_plain_kernel<Float>>(), plan.launch, a, plan.positions, result);
  } else if constexpr (sizeof(Float) == 2) {
    const auto matrix = [&](auto kernel) {
      start(kernel, plan.launch, a, shape, plan.positions, plan.aligned, result);
    };
    if (shape.columns == 128)
      matrix(Kernel<latent_attention_matrix_kernel<Float, 1, 1, 128>>());
    else if (shape.tiles == 2)
      shape.steps == 2 ? matrix(Kernel<latent_attention_matrix_kernel<Float, 2, 2, 64>>())
                       : matrix(Kernel<latent_attention_matrix_kernel<Float, 2, 1, 64>>());
    else
      shape.steps == 2 ? matrix(Kernel<latent_attention_matrix_kernel<Float, 1, 2, 64>>())
                       : matrix(Kernel<latent_attention_matrix_kernel<Float, 1, 1, 64>>());
  }
  if (plan.splits > 1) start(Kernel<join_splits_kernel<Float>>(), plan.join, result);
}

}  // namespace tightbeam
