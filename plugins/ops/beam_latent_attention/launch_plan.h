// Launch plan of BeamLatentAttention's kernels: a block has 16 heads of a row.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "ops/beam_latent_attention/arguments.h"

namespace tightbeam {

namespace device {
template <class Float>
__global__ void beam_latent_attention_simt_kernel(BeamLatentAttentionArguments<Float> a);
template <class Half, int STEPS, int COLUMNS, bool ROTATED>
__global__ void beam_latent_attention_tensor_core_kernel(BeamLatentAttentionArguments<Half> a, TensorCoreShape shape);
}  // namespace device

struct BeamLatentAttentionPlan {
  Launch launch;
  TensorCoreShape tensor_core;  // warps = 0: the SIMT kernel runs
};

template <class Float>
BeamLatentAttentionPlan plan_beam_latent_attention(const BeamLatentAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int NUMBERS = 16 / sizeof(Float);
  const int D = a.G * a.K;
  BeamLatentAttentionPlan plan = {};
  const bool aligned = a.K % NUMBERS == 0 && aligned_16(a.query) && aligned_16(a.row) && aligned_16(a.cache) &&
                       aligned_16(a.output) && aligned_16(a.prefix_output) && aligned_16(a.cosines) &&
                       aligned_16(a.sines);
  if (sizeof(Float) == 2 && gpu.runs_tensor_core_kernels() && a.softcap == 0 && aligned && a.rotary % 16 == 0)
    plan.tensor_core = plan_tensor_core(D, smaller(a.H, 16), gpu);
  const bool tensor_core = plan.tensor_core.warps > 0;
  // The beams of a sample are neighbours in the grid, so that all but one of them read shared rows from L2.
  plan.launch = {{ceil_div(a.H, 16) * (tensor_core ? 1 : ceil_div(D, SIMT_COLUMNS)), a.M, a.B},
                 tensor_core ? plan.tensor_core.warps * 32 : SIMT_THREADS,
                 tensor_core ? plan.tensor_core.bytes : SIMT_SHARED_BYTES};
  return plan;
}

template <class Float>
unsigned long long beam_latent_attention_workspace(const BeamLatentAttentionArguments<Float>&, const Gpu&) {
  return 0;
}
template <class Float>
unsigned long long beam_latent_attention_most_workspace(const BeamLatentAttentionArguments<Float>&, const Gpu&) {
  return 0;
}

template <class Float, class Launcher>
void launch_beam_latent_attention(const BeamLatentAttentionArguments<Float>& a, const Gpu& gpu, void*,
                                  const Launcher& launcher) {
  using namespace device;
  const BeamLatentAttentionPlan plan = plan_beam_latent_attention(a, gpu);
  const TensorCoreShape& shape = plan.tensor_core;
  if (shape.warps == 0) {
    launcher(Kernel<beam_latent_attention_simt_kernel<Float>>(), plan.launch, a);
  } else if constexpr (sizeof(Float) == 2) {
    with_tensor_core_shape(shape, a.rotary > 0, [&](auto, auto steps, auto columns, auto rotated) {
      launcher(Kernel<beam_latent_attention_tensor_core_kernel<Float, steps(), columns(), rotated()>>(), plan.launch, a,
               shape);
    });
  }
}

}  // namespace tightbeam
