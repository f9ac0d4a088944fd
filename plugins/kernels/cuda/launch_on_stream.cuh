// Launching an operator's kernels on a stream, from nvcc's host code.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attention_plan.h"

namespace tightbeam::device {

struct LaunchOnStream {
  cudaStream_t stream;

  template <auto FUNCTION, class... Arguments>
  void operator()(Kernel<FUNCTION>, const Launch& launch, const Arguments&... arguments) const {
    // Above 48 KB a kernel needs an attribute.
    if (launch.shared_bytes > 48 * 1024)
      cudaFuncSetAttribute(reinterpret_cast<const void*>(FUNCTION), cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(launch.shared_bytes));
    const dim3 grid(static_cast<unsigned>(launch.grid[0]), static_cast<unsigned>(launch.grid[1]),
                    static_cast<unsigned>(launch.grid[2]));
    FUNCTION<<<grid, static_cast<unsigned>(launch.block), launch.shared_bytes, stream>>>(arguments...);
  }
};

// The GPU of the calling thread.
inline Gpu current_gpu() {
  int device = 0;
  cudaGetDevice(&device);
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device);
    return value;
  };
  return {attribute(cudaDevAttrMultiProcessorCount),
          static_cast<unsigned>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
          10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor)};
}

}  // namespace tightbeam::device

// Defines the function that onnxruntime/cuda.cpp calls, from the operator's launch_plan.h. `workspace`: device memory
// of <op>_workspace bytes. Errors of a launch: cudaGetLastError.
#define TIGHTBEAM_LAUNCH_ON_STREAM(op, Arguments)                                             \
  namespace tightbeam {                                                                       \
  template <class Float>                                                                      \
  void launch_##op(const Arguments<Float>& arguments, void* workspace, cudaStream_t stream) { \
    launch_##op(arguments, device::current_gpu(), workspace, device::LaunchOnStream{stream}); \
  }                                                                                           \
  template <class Float>                                                                      \
  std::size_t op##_workspace(const Arguments<Float>& arguments) {                             \
    return op##_workspace(arguments, device::current_gpu());                                  \
  }                                                                                           \
  template void launch_##op(const Arguments<float>&, void*, cudaStream_t);                    \
  template void launch_##op(const Arguments<__half>&, void*, cudaStream_t);                   \
  template void launch_##op(const Arguments<__nv_bfloat16>&, void*, cudaStream_t);            \
  template std::size_t op##_workspace(const Arguments<float>&);                               \
  template std::size_t op##_workspace(const Arguments<__half>&);                              \
  template std::size_t op##_workspace(const Arguments<__nv_bfloat16>&);                       \
  }
