// How LatentAttention's kernels are started.
#pragma once

#include "common/attention_plan.h"
#include "latent_attention/arguments.h"

namespace tightbeam {

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

}  // namespace tightbeam
