// The rotation of rows in shared memory (RoPE).
#pragma once

#include "kernels/cuda/device.cuh"

namespace tightbeam::device {

// Rotates 16 rows in shared memory, `stride` numbers apart. `table_row` is the rotation tables' row for this lane's
// row, lane % 16. rotary / 2 must be whole packs. Called by a whole warp.
template <class Half, class Arguments>
__device__ __forceinline__ void rotate_rows(Half* rows, int stride, const Arguments& a, int table_row) {
  const int lane = threadIdx.x % WARP, half = a.rotary / 2;
  Half* row = rows + lane % 16 * stride;
  const long long table = static_cast<long long>(table_row) * half;
#pragma unroll 1
  for (int k = lane / 16 * 8; k < half; k += 16) {
    Pack<Half> low = load_16(row + k), high = load_16(row + k + half);
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const Pack<float> cosine = load_16(a.cosines + table + k + i), sine = load_16(a.sines + table + k + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float one = to_float(low.values[i + j]), two = to_float(high.values[i + j]);
        low.values[i + j] = from_float<Half>(one * cosine.values[j] - two * sine.values[j]);
        high.values[i + j] = from_float<Half>(two * cosine.values[j] + one * sine.values[j]);
      }
    }
    store_16(row + k, low);
    store_16(row + k + half, high);
  }
}

}  // namespace tightbeam::device
