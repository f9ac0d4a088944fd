// Launch plan of BeamTopK's two kernels, and of the workspace between them.
#pragma once

#include "kernels/cuda/launch.h"
#include "ops/beam_top_k/arguments.h"
#include "ops/beam_top_k/workspace.h"

namespace tightbeam {

namespace device {
template <class Float>
__global__ void beam_top_k_slices(BeamTopKArguments<Float> a, BeamTopKWorkspace w);
template <class Float>
__global__ void beam_top_k_samples(BeamTopKArguments<Float> a, BeamTopKWorkspace w);
}  // namespace device

struct BeamTopKPlan {
  BeamTopKWorkspace workspace;
  unsigned long long workspace_bytes;
  Launch slices, samples;
};

// `workspace` is aligned to 16 bytes, or null to learn the sizes only.
template <class Float>
BeamTopKPlan plan_beam_top_k(const BeamTopKArguments<Float>& a, void* workspace) {
  constexpr int MAX_LEAD = 16 / sizeof(Float) - 1;  // a row's first slice begins at the aligned address before the row
  const int R = a.B * a.M, C = a.C;
  BeamTopKPlan plan = {};
  BeamTopKWorkspace& w = plan.workspace;
  w.slices = (a.vocabulary + MAX_LEAD + TOP_K_SLICE - 1) / TOP_K_SLICE;
  w.tokens = (a.vocabulary + MAX_LEAD + 16 * w.slices - 1) / (16 * w.slices) * 16;  // even shares, aligned
  w.lists = !a.repetition_penalty_at && a.repetition_penalty == 1.0f ? 1 : 2;
  w.listed = C < TOP_K_SLICE ? C : TOP_K_SLICE;
  w.capacity = 3 * C + 104 < TOP_K_SLICE ? 3 * C + 104 : TOP_K_SLICE;  // nearly always enough for random logits

  const unsigned long long slices = static_cast<unsigned long long>(w.slices) * R;
  const unsigned long long candidates = slices * w.lists * w.listed;
  w.chosen = static_cast<BeamTopKKey*>(workspace);
  w.candidates = reinterpret_cast<unsigned long long*>(w.chosen + candidates);
  w.slice_max = reinterpret_cast<float*>(w.candidates + candidates);
  w.sums = w.slice_max + slices;
  plan.workspace_bytes = candidates * (sizeof(BeamTopKKey) + sizeof(unsigned long long)) + slices * 2 * sizeof(float);

  // Shared memory has two sets of each thread's tokens, a few numbers of each warp, and the keys to rank.
  plan.slices = {{w.slices * R, 1, 1}, TOP_K_THREADS, TOP_K_THREADS * 8u + 256u + w.capacity * 8u};
  plan.samples = {{a.B, 1, 1}, TOP_K_THREADS, TOP_K_THREADS / 32 * 4u + 16u + a.M * 8u};
  return plan;
}

template <class Float>
unsigned long long beam_top_k_workspace(const BeamTopKArguments<Float>& a, const Gpu&) {
  return plan_beam_top_k(a, nullptr).workspace_bytes;
}
template <class Float>
unsigned long long beam_top_k_most_workspace(const BeamTopKArguments<Float>& a, const Gpu& gpu) {
  return beam_top_k_workspace(a, gpu);  // it grows with every size
}

template <class Float, class Launcher>
void launch_beam_top_k(const BeamTopKArguments<Float>& a, const Gpu&, void* workspace, const Launcher& launcher) {
  const BeamTopKPlan plan = plan_beam_top_k(a, workspace);
  launcher(Kernel<device::beam_top_k_slices<Float>>(), plan.slices, a, plan.workspace);
  launcher(Kernel<device::beam_top_k_samples<Float>>(), plan.samples, a, plan.workspace);
}

}  // namespace tightbeam
