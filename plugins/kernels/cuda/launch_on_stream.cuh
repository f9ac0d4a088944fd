// The launch of an operator's kernels on a stream, from host code that nvcc compiles.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <utility>

#include "kernels/cuda/attention_plan.h"

namespace tightbeam::device {

// Sets the attribute that a kernel needs for more than 48 KB of shared memory. If this fails, the launch reports it.
inline void allow_shared_memory(const void* kernel, const Launch& launch) {
  thread_local std::map<std::pair<int, const void*>, unsigned> allowed;
  int device = 0;
  cudaGetDevice(&device);
  unsigned& bytes = allowed[{device, kernel}];
  if (bytes >= launch.shared_bytes) return;
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(launch.shared_bytes)) == cudaSuccess)
    bytes = launch.shared_bytes;
}

struct LaunchOnStream {
  cudaStream_t stream;

  template <auto FUNCTION, class... Arguments>
  void operator()(Kernel<FUNCTION>, const Launch& launch, const Arguments&... arguments) const {
    if (launch.shared_bytes > 48 * 1024) allow_shared_memory(reinterpret_cast<const void*>(FUNCTION), launch);
    const dim3 grid(static_cast<unsigned>(launch.grid[0]), static_cast<unsigned>(launch.grid[1]),
                    static_cast<unsigned>(launch.grid[2]));
    FUNCTION<<<grid, static_cast<unsigned>(launch.block), launch.shared_bytes, stream>>>(arguments...);
  }
};

// The current GPU of the calling thread. CUDA is asked once for each thread and device.
inline Gpu current_gpu() {
  thread_local int known = -1;
  thread_local Gpu gpu;
  int device = 0;
  cudaGetDevice(&device);
  if (device == known) return gpu;
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device);
    return value;
  };
  gpu = {attribute(cudaDevAttrMultiProcessorCount),
         static_cast<unsigned>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
         10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor)};
  known = device;
  return gpu;
}

}  // namespace tightbeam::device

// Defines the functions that onnxruntime/cuda.cpp calls, from the operator's launch_plan.h. `workspace` is device
// memory of <op>_workspace bytes. cudaGetLastError reports errors of a launch.
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
