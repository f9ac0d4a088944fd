// Launch plan of BeamAttention's kernel: one block a sample, key/value head and slice of value columns.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "ops/beam_attention/arguments.h"

namespace tightbeam {

namespace device {
template <class Float, int QUERIES, int CHUNKS, bool ROTATED>
__global__ void beam_attention_kernel(BeamAttentionArguments<Float> a, RowStreamPlan plan);
}

struct BeamAttentionPlan {
  Launch launch;
  RowStreamPlan stream;
};

template <class Float>
BeamAttentionPlan plan_beam_attention(const BeamAttentionArguments<Float>& a) {
  constexpr int MAX_WARPS = 8, NUMBERS = 16 / sizeof(Float);
  constexpr unsigned SHARED_BYTES = 48 * 1024;  // beyond it fewer warps a block
  const int Q = a.H / a.G;
  BeamAttentionPlan plan = {};
  const bool aligned = a.K % NUMBERS == 0 && a.V % NUMBERS == 0 && aligned_16(a.projected) && aligned_16(a.key_cache) &&
                       aligned_16(a.value_cache);
  plan.stream = plan_row_stream(Q > 1 ? 4 : 1, a.K, a.V, NUMBERS, aligned);
  const unsigned bytes = stream_bytes_per_warp(plan.stream, NUMBERS, a.rotary > 0);
  int warps = MAX_WARPS;
  while (warps > 1 && warps * bytes > SHARED_BYTES) warps /= 2;
  const int tasks = a.M * ceil_div(Q, plan.stream.queries);
  plan.stream.parts = larger(warps / tasks, 1);
  warps = smaller(warps, tasks * plan.stream.parts);
  const int slices = ceil_div(a.V, stream_columns(plan.stream, NUMBERS));
  plan.launch = {{a.B * a.G, slices, 1}, warps * 32, warps * bytes};
  return plan;
}

template <class Float>
unsigned long long beam_attention_workspace(const BeamAttentionArguments<Float>&, const Gpu&) {
  return 0;
}
template <class Float>
unsigned long long beam_attention_most_workspace(const BeamAttentionArguments<Float>&, const Gpu&) {
  return 0;
}

template <bool ROTATED, class Float, class Launcher>
void launch_beam_attention(const BeamAttentionArguments<Float>& a, const BeamAttentionPlan& plan,
                           const Launcher& launcher) {
  using namespace device;
  if (plan.stream.chunks > 1)
    launcher(Kernel<beam_attention_kernel<Float, 1, 4, ROTATED>>(), plan.launch, a, plan.stream);
  else if (plan.stream.queries > 1)
    launcher(Kernel<beam_attention_kernel<Float, 4, 1, ROTATED>>(), plan.launch, a, plan.stream);
  else
    launcher(Kernel<beam_attention_kernel<Float, 1, 1, ROTATED>>(), plan.launch, a, plan.stream);
}

template <class Float, class Launcher>
void launch_beam_attention(const BeamAttentionArguments<Float>& a, const Gpu&, void*, const Launcher& launcher) {
  const BeamAttentionPlan plan = plan_beam_attention(a);
  a.rotary > 0 ? launch_beam_attention<true>(a, plan, launcher) : launch_beam_attention<false>(a, plan, launcher);
}

}  // namespace tightbeam
