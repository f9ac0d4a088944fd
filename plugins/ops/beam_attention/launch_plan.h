// Launch plan of BeamAttention's kernels. A block of the tensor-core kernel has a few key/value heads of a sample; a
// block of the SIMT kernel has one key/value head of a sample and a slice of the value columns.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "ops/beam_attention/arguments.h"

namespace tightbeam {

namespace device {
template <class Float, int QUERIES, int CHUNKS, bool ROTATED>
__global__ void beam_attention_kernel(BeamAttentionArguments<Float> a, RowStreamPlan plan);
template <class Half, int HALVES, int WIDTH, bool ROTATED>
__global__ void beam_attention_tensor_core_kernel(BeamAttentionArguments<Half> a, BeamTilesPlan plan);
}  // namespace device

struct BeamAttentionPlan {
  Launch launch;
  BeamTilesPlan tiles;   // of the tensor-core kernel; parts = 0: the SIMT kernel runs
  RowStreamPlan stream;  // of the SIMT kernel
};

// Sets the plan of the tensor-core kernel and returns true if that kernel can run the call.
template <class Float>
bool plan_beam_tiles(const BeamAttentionArguments<Float>& a, const Gpu& gpu, BeamAttentionPlan& plan) {
  constexpr int NUMBERS = 16 / sizeof(Float), WARPS = BEAM_TILES_WARPS;
  constexpr int MOST_BEAMS = 32;     // bits of a set of beams
  constexpr int MOST_QUERIES = 512;  // of a key/value head and beam: Q_inverse is exact up to here
  constexpr int MOST_ROWS = 1024;    // rows that are found at a time
  constexpr int BUSY = 8;  // warps that keep a multiprocessor busy; with fewer, several warps share a head's rows
  const int Q = a.H / a.G, queries = a.M * Q;
  const bool aligned = a.K % NUMBERS == 0 && a.V % NUMBERS == 0 && a.rotary % (2 * NUMBERS) == 0 &&
                       aligned_16(a.projected) && aligned_16(a.key_cache) && aligned_16(a.value_cache) &&
                       aligned_16(a.output) && aligned_16(a.prefix_output) && aligned_16(a.cosines) &&
                       aligned_16(a.sines);
  if (sizeof(Float) != 2 || !gpu.runs_tensor_core_kernels() || a.softcap != 0 || !aligned || a.K > 128 || a.V > 128 ||
      a.M > MOST_BEAMS || Q > MOST_QUERIES)
    return false;
  BeamTilesPlan tiles = {};
  tiles.halves = queries > 8 ? 2 : 1;
  tiles.width = a.K <= 64 && a.V <= 64 ? 64 : 128;
  tiles.Q = Q;
  tiles.Q_inverse = (1u << 24) / static_cast<unsigned>(Q) + 1;
  const int query_blocks = ceil_div(queries, 8 * tiles.halves),
            beams = smaller(a.M, (8 * tiles.halves + Q - 2) / Q + 1);
  tiles.stretch = larger(32, smaller(32 * WARPS, MOST_ROWS / beams / 32 * 32));
  tiles.capacity = tiles.stretch * beams + MOST_BEAMS;
  tiles.rows_at = WARPS * 2 * 2 * 16 * static_cast<unsigned>(tiles.width + 8) * 2;
  const unsigned bytes = tiles.rows_at + 12 * static_cast<unsigned>(tiles.capacity) + 4 * WARPS;
  if (bytes > gpu.shared_bytes) return false;
  for (tiles.parts = 1; tiles.parts < WARPS && 16 * tiles.parts < a.T;) {
    if (static_cast<long long>(a.B) * a.G * query_blocks * 2 * tiles.parts > BUSY * gpu.multiprocessors) break;
    tiles.parts *= 2;
  }
  tiles.heads = WARPS / tiles.parts;
  plan.tiles = tiles;
  plan.launch = {{ceil_div(a.G, tiles.heads), query_blocks, a.B}, 32 * WARPS, bytes};
  return true;
}

template <class Float>
BeamAttentionPlan plan_beam_attention(const BeamAttentionArguments<Float>& a, const Gpu& gpu) {
  constexpr int MAX_WARPS = 8, NUMBERS = 16 / sizeof(Float);
  constexpr unsigned SHARED_BYTES = 48 * 1024;  // a block gets fewer warps if it needs more
  const int Q = a.H / a.G;
  BeamAttentionPlan plan = {};
  if (plan_beam_tiles(a, gpu, plan)) return plan;
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
  if constexpr (sizeof(Float) == 2) {
    const BeamTilesPlan& tiles = plan.tiles;
    const auto launch = [&](auto kernel) { launcher(kernel, plan.launch, a, tiles); };
    if (tiles.parts > 0 && tiles.width == 64)
      return tiles.halves == 1 ? launch(Kernel<beam_attention_tensor_core_kernel<Float, 1, 64, ROTATED>>())
                               : launch(Kernel<beam_attention_tensor_core_kernel<Float, 2, 64, ROTATED>>());
    if (tiles.parts > 0)
      return tiles.halves == 1 ? launch(Kernel<beam_attention_tensor_core_kernel<Float, 1, 128, ROTATED>>())
                               : launch(Kernel<beam_attention_tensor_core_kernel<Float, 2, 128, ROTATED>>());
  }
  if (plan.stream.chunks > 1)
    launcher(Kernel<beam_attention_kernel<Float, 1, 4, ROTATED>>(), plan.launch, a, plan.stream);
  else if (plan.stream.queries > 1)
    launcher(Kernel<beam_attention_kernel<Float, 4, 1, ROTATED>>(), plan.launch, a, plan.stream);
  else
    launcher(Kernel<beam_attention_kernel<Float, 1, 1, ROTATED>>(), plan.launch, a, plan.stream);
}

template <class Float, class Launcher>
void launch_beam_attention(const BeamAttentionArguments<Float>& a, const Gpu& gpu, void*, const Launcher& launcher) {
  const BeamAttentionPlan plan = plan_beam_attention(a, gpu);
  a.rotary > 0 ? launch_beam_attention<true>(a, plan, launcher) : launch_beam_attention<false>(a, plan, launcher);
}

}  // namespace tightbeam
