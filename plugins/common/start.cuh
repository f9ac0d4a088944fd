// Starting a kernel from nvcc's host code.
#pragma once

#include <cuda_runtime.h>

#include "common/attention_plan.h"

namespace tightbeam::device {

struct StartOnStream {
  cudaStream_t stream;

  template <class... Parameters, class... Arguments>
  void operator()(void (*kernel)(Parameters...), const Launch& launch, const Arguments&... arguments) const {
    // Beyond 48 KB a kernel has to ask.
    if (launch.shared_bytes > 48 * 1024)
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(launch.shared_bytes));
    const dim3 grid(static_cast<unsigned>(launch.grid[0]), static_cast<unsigned>(launch.grid[1]),
                    static_cast<unsigned>(launch.grid[2]));
    kernel<<<grid, static_cast<unsigned>(launch.block), launch.shared_bytes, stream>>>(arguments...);
  }
};

// The GPU of the calling thread.
inline Gpu current_gpu() {
  int device = 0, shared_bytes = 0;
  Gpu gpu;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&gpu.multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  gpu.shared_bytes = static_cast<unsigned>(shared_bytes);
  return gpu;
}

}  // namespace tightbeam::device
