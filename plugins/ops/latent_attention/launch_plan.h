// Launch plan of LatentAttention's kernels.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "ops/latent_attention/arguments.h"

namespace tightbeam {

namespace device {
template <class Float>
__global__ void latent_attention_simt_kernel(LatentAttentionArguments<Float> a, int positions,
                                             SplitResult<Float> result);
template <class Half, int TILES, int STEPS, int COLUMNS, bool ROTATED>
__global__ void latent_attention_tensor_core_kernel(LatentAttentionArguments<Half> a, TensorCoreShape shape,
                                                    int positions, SplitResult<Half> result);
}  // namespace device

struct LatentAttentionPlan {
  Launch launch, combine;       // `combine` runs if splits > 1
  TensorCoreShape tensor_core;  // warps = 0: the SIMT kernel runs
  int queries;                  // of a block
  int splits, positions;        // splits of the source, and positions of a split
  unsigned long long workspace_bytes;
};

template <class Float>
LatentAttentionPlan plan_latent_attention(const LatentAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int NUMBERS = 16 / sizeof(Float);
  const int D = a.G * a.K, queries = a.M * a.H;
  LatentAttentionPlan plan = {};
  const bool aligned = a.K % NUMBERS == 0 && aligned_16(a.query) && aligned_16(a.states) && aligned_16(a.output) &&
                       aligned_16(a.cosines) && aligned_16(a.sines);
  const bool plain = a.softcap == 0 && a.key_bias == nullptr;
  if (sizeof(Float) == 2 && gpu.runs_tensor_core_kernels() && plain && aligned && a.rotary % 16 == 0)
    plan.tensor_core = plan_tensor_core(D, queries, gpu);
  const bool tensor_core = plan.tensor_core.warps > 0;
  plan.queries = tensor_core ? 16 * plan.tensor_core.tiles : SIMT_QUERIES;
  const int blocks = ceil_div(queries, plan.queries), slices = tensor_core ? 1 : ceil_div(D, SIMT_COLUMNS);
  // One block fills a multiprocessor. Splits cost a second pass over their outputs.
  plan.splits = plan_splits(static_cast<long long>(a.B) * blocks * slices, gpu.multiprocessors, a.N,
                            split_overhead<Float>(smaller(queries, plan.queries), D, D));
  plan.positions = larger(32, ceil_div(ceil_div(a.N, plan.splits), 32) * 32);
  plan.splits = larger(1, ceil_div(a.N, plan.positions));
  plan.launch = {{blocks * slices, plan.splits, a.B},
                 tensor_core ? plan.tensor_core.warps * 32 : SIMT_THREADS,
                 tensor_core ? plan.tensor_core.bytes : SIMT_SHARED_BYTES};
  plan.combine = {{a.B * a.M * a.H, 1, 1}, 128, 0};
  if (plan.splits > 1)
    plan.workspace_bytes = sizeof(float) * static_cast<unsigned long long>(plan.splits) * a.B * queries * (D + 1);
  return plan;
}

template <class Float>
unsigned long long latent_attention_workspace(const LatentAttentionArguments<Float>& a, const Gpu& gpu) {
  return plan_latent_attention(a, gpu).workspace_bytes;
}
// Each split needs workspace for its queries, and SPLIT_WAVES bounds the blocks of a split source.
template <class Float>
unsigned long long latent_attention_most_workspace(const LatentAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int MOST_QUERIES = 32;  // of a block
  return sizeof(float) * SPLIT_WAVES * gpu.multiprocessors * MOST_QUERIES * (a.G * a.K + 1);
}

template <class Float, class Launcher>
void launch_latent_attention(const LatentAttentionArguments<Float>& a, const Gpu& gpu, void* workspace,
                             const Launcher& launcher) {
  using namespace device;
  const LatentAttentionPlan plan = plan_latent_attention(a, gpu);
  const SplitResult<Float> result = {
      a.output, a.lse, static_cast<float*>(workspace), plan.splits, static_cast<long long>(a.B) * a.M * a.H, a.G * a.K};
  const TensorCoreShape& shape = plan.tensor_core;
  if (shape.warps == 0) {
    launcher(Kernel<latent_attention_simt_kernel<Float>>(), plan.launch, a, plan.positions, result);
  } else if constexpr (sizeof(Float) == 2) {
    with_tensor_core_shape(shape, a.rotary > 0, [&](auto tiles, auto steps, auto columns, auto rotated) {
      launcher(Kernel<latent_attention_tensor_core_kernel<Float, tiles(), steps(), columns(), rotated()>>(),
               plan.launch, a, shape, plan.positions, result);
    });
  }
  if (plan.splits > 1) launcher(Kernel<combine_splits_kernel<Float>>(), plan.combine, result);
}

}  // namespace tightbeam
