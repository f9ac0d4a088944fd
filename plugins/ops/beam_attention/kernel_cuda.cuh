// BeamAttention in CUDA: a tensor-core kernel, and a SIMT kernel for float32, GPUs before 8.0, any width and alignment.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_plan.h"
#include "ops/beam_attention/arguments.h"
#include "ops/beam_attention/beam_tiles.cuh"
#ifndef __CUDACC_RTC__
#include "ops/beam_attention/launch_plan.h"
#endif

namespace tightbeam::device {

// The tensor-core kernel. A block takes a few key/value heads of a sample, with one or several warps each. Shared rows
// are read and multiplied once for all beams, and after a few steps of a search nearly all rows are shared. So the
// lower bound of the time is the bytes of the rows.
template <class Half, int HALVES, int WIDTH, bool ROTATED>
__global__ void __launch_bounds__(32 * BEAM_TILES_WARPS, WIDTH == 128 ? 2
                                                         : ROTATED    ? 3
                                                                      : 4)
    beam_attention_tensor_core_kernel(BeamAttentionArguments<Half> a, BeamTilesPlan plan) {
  BeamTiles<Half, HALVES, WIDTH, ROTATED> tiles(a, plan, threadIdx.x / WARP);
  tiles.copy_queries();
  const int sample = blockIdx.z;
  const Span span = history_span(a, sample);
  if (!span.valid) return tiles.put_nan();
  tiles.write_newest(span);
  tiles.take_queries(span);
  HistoryRows rows(plan.rows_at, plan.capacity);
  for (int begin = span.begin; begin <= span.newest; begin += plan.stretch) {
    if (begin > span.begin) __syncthreads();  // so that nothing reads the last stretch any more
    rows.find(a, span, sample, tiles.first_beam(), tiles.end_beam(), begin, plan.stretch);
    tiles.run(rows, span);
  }
  if (plan.parts > 1) tiles.combine();
  tiles.put();
}

// One beam's history at one key/value head, for RowStream.
template <class Float, bool ROTATED>
struct BeamAttentionRows {
  static constexpr bool has_rotation = ROTATED;

  const BeamAttentionArguments<Float>& a;
  const Span& span;
  const float* bias;
  const int* ancestry;  // of the beam
  long long first_row;  // first row of the sample
  int g, first_head, begin, end, K, V;

  __device__ BeamAttentionRows(const BeamAttentionArguments<Float>& a, const Span& span, int sample, int beam, int g,
                               int first_head)
      : a(a),
        span(span),
        first_row(static_cast<long long>(sample) * a.M),
        g(g),
        first_head(first_head),
        begin(span.begin),
        end(span.newest + 1),
        K(a.K),
        V(a.V) {
    bias = history_bias(a, first_row + beam);
    ancestry = a.ancestry + (first_row + beam) * a.T;
  }

  // The beam slot that wrote a position.
  __device__ int look_up(int t) const { return ancestry[t]; }

  // The newest position is read from the inputs, since another block may be writing the cache's row at this moment.
  __device__ void locate(int t, int slot, const Float** key, const Float** value) const {
    const long long row = first_row + slot;
    if (t == span.newest) {
      const Float* projected = a.projected + row * (a.H * a.K + a.G * (a.K + a.V));
      *key = projected + (a.H + g) * a.K;
      *value = projected + (a.H + a.G) * a.K + g * a.V;
    } else {
      const long long position = (row * a.G + g) * a.T_max + t;
      *key = a.key_cache + position * a.K;
      *value = a.value_cache + position * a.V;
    }
  }

  __device__ float score(int q, int t, float dot) const {
    const int head = first_head + q;
    return history_score<false>(a, span, bias, head < a.H ? head : a.H - 1, t, dot);
  }

  // A rotated key times a query equals the key times the query rotated back. So key number c is multiplied by q[c] cos
  // + q'[c] sin, with q' the other half of the query.
  __device__ void rotation(int t, int column, float (&cosines)[4], float (&sines)[4]) const {
    const int half = a.rotary / 2;
    const long long table = static_cast<long long>(span.first + t) * half;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = column + i, angle = c < half ? c : c - half;
      cosines[i] = c < a.rotary ? a.cosines[table + angle] : 1.0f;
      sines[i] = c < a.rotary ? a.sines[table + angle] : 0.0f;
    }
  }
};

// The SIMT kernel. A block takes all beams of a sample at one key/value head. Its warps read shared rows at about the
// same time, so that a row comes from device memory once. Each lane loads 16 bytes of a row straight into registers,
// and each number is used for Q = H / G queries.
template <class Float, int QUERIES, int CHUNKS, bool ROTATED>
__global__ void __launch_bounds__(256, ROTATED || QUERIES * CHUNKS > 1 ? 1 : 2)
    beam_attention_kernel(BeamAttentionArguments<Float> a, RowStreamPlan plan) {
  const int b = blockIdx.x / a.G, g = blockIdx.x % a.G, Q = a.H / a.G;
  const int columns = plan.lanes * CHUNKS * Pack<Float>::size, first_column = blockIdx.y * columns;
  const int slice = min(columns, a.V - first_column);
  const long long first_row = static_cast<long long>(b) * a.M, projected_width = a.H * a.K + a.G * (a.K + a.V);
  Float* output = a.output + first_row * a.H * a.V + g * Q * a.V + first_column;

  const Span span = history_span(a, b);
  const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (!span.valid) {
    for (int row = warp; row < a.M * Q; row += warps)
      for (int column = lane; column < slice; column += WARP)
        output[(static_cast<long long>(row / Q) * a.H + row % Q) * a.V + column] = from_float<Float>(not_a_number());
    return;
  }

  for (int beam = warp; beam < a.M; beam += warps) {
    const Float* projected = a.projected + (first_row + beam) * projected_width + a.H * a.K;
    const long long position = ((first_row + beam) * a.G + g) * a.T_max + span.newest;
    for (int column = lane; blockIdx.y == 0 && column < a.K; column += WARP)
      a.key_cache[position * a.K + column] = projected[g * a.K + column];
    for (int column = first_column + lane; column < first_column + slice; column += WARP)
      a.value_cache[position * a.V + column] = projected[a.G * a.K + g * a.V + column];
  }

  const int rotated_floats = ROTATED ? QUERIES * plan.K_padded : 0;
  const int query_floats = QUERIES * plan.K_padded + rotated_floats;
  float* queries = shared_memory<float>() + warp * query_floats;
  float* all_sums = shared_memory<float>() + warps * query_floats;
  PartialSoftmax* all_softmax = reinterpret_cast<PartialSoftmax*>(all_sums + warps * QUERIES * columns);

  // A task is QUERIES heads of one beam, whose positions `parts` warps share. If there are more tasks than warps, they
  // come in rounds.
  const int tasks_per_beam = (Q + QUERIES - 1) / QUERIES, tasks = a.M * tasks_per_beam;
  const int tasks_per_round = warps / plan.parts;
  for (int first_task = 0; first_task < tasks; first_task += tasks_per_round) {
    const int task = first_task + warp / plan.parts, part = warp % plan.parts;
    if (warp < tasks_per_round * plan.parts && task < tasks) {
      const int beam = task / tasks_per_beam, first_q = task % tasks_per_beam * QUERIES;
      const Float* query = a.projected + (first_row + beam) * projected_width + (g * Q + first_q) * a.K;
      for (int i = lane; i < QUERIES * plan.K_padded; i += WARP) {
        const int q = i / plan.K_padded, c = i % plan.K_padded;
        const bool there = c < a.K && first_q + q < Q;
        const auto at = [&](int column) { return to_float(query[q * a.K + column]); };
        queries[i] = there ? rotated(a, span.first + span.newest, c, at) : 0.0f;
      }
      __syncwarp();
      for (int i = lane; i < rotated_floats; i += WARP) {
        const int c = i % plan.K_padded, half = a.rotary / 2;
        queries[rotated_floats + i] = c >= a.rotary ? 0.0f : c < half ? queries[i + half] : -queries[i - half];
      }
      __syncwarp();
      using Rows = BeamAttentionRows<Float, ROTATED>;
      const Rows rows(a, span, b, beam, g, g * Q + first_q);
      RowStream<Float, QUERIES, CHUNKS, Rows> stream;
      stream.run(rows, queries, plan.K_padded, plan.lanes, part, plan.parts, first_column);
      stream.store(all_softmax + warp * QUERIES, all_sums + warp * QUERIES * columns, plan.lanes);
    }
    __syncthreads();
    const int round_tasks = min(tasks_per_round, tasks - first_task);
    for (int i = warp; i < round_tasks * QUERIES; i += warps) {
      const int local = i / QUERIES, q = i % QUERIES;
      const int beam = (first_task + local) / tasks_per_beam;
      const int head = (first_task + local) % tasks_per_beam * QUERIES + q;
      if (head >= Q) continue;
      const long long prefix = (first_row + beam) * a.H + g * Q + head;
      Float* to = output + (static_cast<long long>(beam) * a.H + head) * a.V;
      const auto softmax = [&](int p) {
        if (p == plan.parts) return PartialSoftmax{a.prefix_lse[prefix], 1.0f};
        return all_softmax[(local * plan.parts + p) * QUERIES + q];
      };
      for (int column = lane; column < slice; column += WARP) {
        const auto sum = [&](int p) {
          if (p == plan.parts) return to_float(a.prefix_output[prefix * a.V + first_column + column]);
          return all_sums[((local * plan.parts + p) * QUERIES + q) * columns + column];
        };
        to[column] = from_float<Float>(combine_parts(plan.parts + (a.prefix_lse ? 1 : 0), softmax, sum, nullptr));
      }
    }
    __syncthreads();
  }
}

}  // namespace tightbeam::device
