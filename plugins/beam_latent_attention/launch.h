// How BeamLatentAttention's kernel is started: one block a row and 16 or 32 of its heads.
#pragma once

#include "beam_latent_attention/arguments.h"
#include "common/attention_plan.h"

namespace tightbeam {

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

}  // namespace tightbeam
