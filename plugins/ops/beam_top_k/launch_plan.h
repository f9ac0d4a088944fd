// Launch plan of BeamTopK's two kernels, and the memory between them.
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

// `workspace`: aligned to 16 bytes; may be null where only the sizes are asked for.
template <class Float>
BeamTopKPlan plan_beam_top_k(const BeamTopKArguments<Float>& a, void* workspace) {
  constexpr int MAX_LEAD = 16 / sizeof(Float) - 1;  // a row's first slice begins at the aligned address before it
  const int R = a.B * a.M, C = a.C;
  BeamTopKPlan plan = {};
  BeamTopKWorkspace& w = plan.workspace;
  w.slices = (a.vocabulary + MAX_LEAD + TOP_K_SLICE - 1) / TOP_K_SLICE;
  w.lists = !a.repetition_penalty_at && a.repetition_penalty == 1.0f ? 1 : 2;
  w.listed = C < TOP_K_SLICE ? C : TOP_K_SLICE;

  const unsigned long long slices = static_cast<unsigned long long>(w.slices) * R;
  const unsigned long long candidates = slices * w.lists * w.listed;
  w.chosen = static_cast<BeamTopKKey*>(workspace);
  w.candidates = reinterpret_cast<unsigned long long*>(w.chosen + candidates);
  w.slice_max = reinterpret_cast<float*>(w.candidates + candidates);
  w.sums = w.slice_max + slices;
  plan.workspace_bytes = candidates * (sizeof(BeamTopKKey) + sizeof(unsigned long long)) + slices * 2 * sizeof(float);

  // Marks of the slice's tokens, one key a thread, the keys that are left to be ranked, a few numbers.
  const int ranked = C < TOP_K_SLICE_THREADS ? C * TOP_K_THREAD_TOKENS : TOP_K_SLICE;
  const unsigned slice_bytes = TOP_K_SLICE / 4u + (TOP_K_SLICE_THREADS + ranked) * 8u + 136u;
  plan.slices = {{w.slices * R, 1, 1}, TOP_K_SLICE_THREADS, slice_bytes};
  // With more candidates than threads no bound is found, and all are ranked.
  const int threads = C <= 128 ? 256 : TOP_K_SAMPLE_THREADS;
  plan.samples = {{a.B, 1, 1}, threads, threads * 16u + a.M * 8u + 32u};
  return plan;
}

template <class Float>
unsigned long long beam_top_k_workspace(const BeamTopKArguments<Float>& a, const Gpu&) {
  return plan_beam_top_k(a, nullptr).workspace_bytes;
}
template <class Float>
unsigned long long beam_top_k_most_workspace(const BeamTopKArguments<Float>& a, const Gpu& gpu) {
  return beam_top_k_workspace(a, gpu);  // grows with every size
}

template <class Float, class Launcher>
void launch_beam_top_k(const BeamTopKArguments<Float>& a, const Gpu&, void* workspace, const Launcher& launcher) {
  const BeamTopKPlan plan = plan_beam_top_k(a, workspace);
  launcher(Kernel<device::beam_top_k_slices<Float>>(), plan.slices, a, plan.workspace);
  launcher(Kernel<device::beam_top_k_samples<Float>>(), plan.samples, a, plan.workspace);
}

}  // namespace tightbeam
