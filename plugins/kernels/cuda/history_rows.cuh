// The rows in the histories of a sample's beams, each listed once, so that a shared row is read and multiplied for all
// of its beams at a time.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace tightbeam::device {

// A list in shared memory, in tiles of 16: rows of a stretch of positions before the newest, then rows of the newest
// position, which are in the inputs.
struct HistoryRows {
  int* places;      // index in [M, G, T_max] at head 0; for the newest position, its slot; -1 fills a tile
  unsigned* beams;  // bit i is set if the row is in the history of beam first_beam + i
  int* positions;
  int* counts;        // rows that each warp has found
  int tiles, newest;  // `newest` is the first tile of the newest position

  // `capacity` is the largest number of rows, a multiple of 16.
  __device__ HistoryRows(unsigned byte_offset, int capacity)
      : places(shared_memory<int>(byte_offset)),
        beams(reinterpret_cast<unsigned*>(places + capacity)),
        positions(places + 2 * capacity),
        counts(places + 3 * capacity) {}

  __device__ __forceinline__ void set(int at, int place, unsigned of_beams, int position) const {
    places[at] = place, beams[at] = of_beams, positions[at] = position;
  }

  // Lists the rows of `stretch` positions from `begin` on that are in the histories of beams [first_beam, end_beam).
  // The rows of a position are side by side. A thread has at most one position; there are at most 32 beams. Called by a
  // whole block; ends with a barrier.
  template <class Arguments>
  __device__ __forceinline__ void find(const Arguments& a, const Span& span, int sample, int first_beam, int end_beam,
                                       int begin, int stretch) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % WARP, warp = thread / WARP, t = begin + thread;
    const int* ancestry = a.ancestry + static_cast<long long>(sample) * a.M * a.T;
    const auto beams_of = [&](int position, int slot) {
      unsigned found = 0;
#pragma unroll 4
      for (int beam = first_beam; beam < end_beam; ++beam)
        found |= static_cast<unsigned>(ancestry[beam * a.T + position] == slot) << (beam - first_beam);
      return found;
    };
    unsigned slots = 0;
    if (thread < stretch && t < span.newest)
#pragma unroll 4
      for (int beam = first_beam; beam < end_beam; ++beam) slots |= 1u << ancestry[beam * a.T + t];

    const int own = __popc(slots);
    int end = own;
#pragma unroll
    for (int distance = 1; distance < WARP; distance *= 2) {
      const int before = __shfl_up_sync(WHOLE_WARP, end, static_cast<unsigned>(distance));
      if (lane >= distance) end += before;
    }
    if (lane == WARP - 1) counts[warp] = end;
    __syncthreads();
    int at = end - own, count = 0;
    const int warps = static_cast<int>(blockDim.x) / WARP;
    for (int i = 0; i < warps; ++i) {
      if (i < warp) at += counts[i];
      count += counts[i];
    }
#pragma unroll 1
    for (; slots != 0; slots &= slots - 1, ++at) {
      const int slot = __ffs(static_cast<int>(slots)) - 1;
      set(at, slot * a.G * a.T_max + t, beams_of(t, slot), t);
    }
    tiles = newest = (count + 15) / 16;
    if (thread < 16 * newest - count) set(count + thread, -1, 0, begin);
    if (begin + stretch > span.newest) {
      tiles += (a.M + 15) / 16;
      if (thread < 16 * (tiles - newest)) {
        const unsigned named = thread < a.M ? beams_of(span.newest, thread) : 0;
        set(16 * newest + thread, named ? thread : -1, named, span.newest);
      }
    }
    __syncthreads();
  }
};

}  // namespace tightbeam::device
