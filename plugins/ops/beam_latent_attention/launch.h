// How BeamLatentAttention's kernel is started: one block a row and 16 or 32 of its heads.
#pragma once

#include "ops/beam_latent_attention/arguments.h"
#include "kernels/cuda/attention_plan.h"

namespace tightbeam {

namespace device {
template <class Float>
__global__ void beam_latent_attention_plain_kernel(BeamLatentAttentionArguments<Float> a);
template <class Half, int STEPS, int COLUMNS>
__global__ void beam_latent_attention_matrix_kernel(BeamLatentAttentionArguments<Half> a, MatrixShape shape, bool aligned);
}

struct BeamLatentAttentionPlan {
  Launch launch;
  MatrixShape matrix;  // no warps: without matrix units
  bool aligned;
};

template <class Float>
BeamLatentAttentionPlan plan_beam_latent_attention(const BeamLatentAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int NUMBERS = 16 / sizeof(Float);
  const int D = a.G * a.K;
  BeamLatentAttentionPlan plan = {};
  plan.aligned = a.K % NUMBERS == 0 && aligned_16(a.cache) && aligned_16(a.row);
  if (sizeof(Float) == 2 && turns_fragments(a.K, a.rotary)) plan.matrix = plan_matrix(D, smaller(a.H, 16), gpu);
  const bool matrix = plan.matrix.warps > 0;
  // The beams of a sample are neighbours in the grid: what their histories share comes from L2 for all but one.
  plan.launch = {{a.B * a.M, ceil_div(a.H, 16), matrix ? 1 : ceil_div(D, PLAIN_COLUMNS)},
                 matrix ? plan.matrix.warps * 32 : PLAIN_THREADS,
                 matrix ? plan.matrix.bytes : PLAIN_SHARED_BYTES};
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

template <class Float, class Start>
void start_beam_latent_attention(const BeamLatentAttentionArguments<Float>& a, const Gpu& gpu, void*,
                                 const Start& start) {
  using namespace device;
  const BeamLatentAttentionPlan plan = plan_beam_latent_attention(a, gpu);
  const MatrixShape& shape = plan.matrix;
  if (shape.warps == 0) {
    start(Kernel<beam_latent_attention_plain_kernel<Float>>(), plan.launch, a);
  } else if constexpr (sizeof(Float) == 2) {
    if (shape.columns == 128)
      start(Kernel<beam_latent_attention_matrix_kernel<Float, 1, 128>>(), plan.launch, a, shape, plan.aligned);
    else if (shape.steps == 2)
      start(Kernel<beam_latent_attention_matrix_kernel<Float, 2, 64>>(), plan.launch, a, shape, plan.aligned);
    else
      start(Kernel<beam_latent_attention_matrix_kernel<Float, 1, 64>>(), plan.launch, a, shape, plan.aligned);
  }
}

}  // namespace tightbeam
