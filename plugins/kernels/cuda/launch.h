// The geometry of a kernel launch. Every operator's launch_plan.h has three functions of its arguments and a GPU:
//   <op>_workspace       bytes of device memory that its kernels need beside the call's tensors
//   <op>_most_workspace  an upper bound of that for these sizes and all smaller ones
//   launch_<op>          calls launcher(Kernel<...>, launch, arguments...) for each kernel, in order
#pragma once

namespace tightbeam {

struct Launch {
  int grid[3];
  int block;              // threads of a block, a multiple of 32
  unsigned shared_bytes;  // dynamic shared memory of a block
};

#ifndef __CUDACC_RTC__  // the rest is for the host

#if !defined(__CUDACC__) && !defined(__global__)
#define __global__  // so that launch_plan.h can declare kernels on hosts without CUDA
#endif

// The GPU to plan for; the defaults are an H100. `shared_bytes` is the shared memory that one block may have,
// `capability` the compute capability: 90 is 9.0.
struct Gpu {
  int multiprocessors = 132;
  unsigned shared_bytes = 227 * 1024;
  int capability = 90;

  // True if the GPU has the instructions of the tensor-core kernels: cp.async, and mma of 16x8x16 16-bit numbers.
  bool runs_tensor_core_kernels() const { return capability >= 80; }
};

// A kernel as a type. A launcher can launch it by its address, or record its name.
template <auto FUNCTION>
struct Kernel {};

#endif

}  // namespace tightbeam
