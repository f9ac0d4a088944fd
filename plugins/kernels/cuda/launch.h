// Geometry of a kernel launch. Every operator's launch_plan.h has three functions of its arguments and a GPU:
//   <op>_workspace       bytes of device memory that its kernels need beside their arguments
//   <op>_most_workspace  at least as much for these sizes and all smaller ones
//   launch_<op>           calls launcher(Kernel<...>, launch, arguments...) for each kernel, in order
#pragma once

namespace tightbeam {

struct Launch {
  int grid[3];
  int block;              // threads of a block, a multiple of 32
  unsigned shared_bytes;  // dynamic shared memory of a block
};

#ifndef __CUDACC_RTC__  // the rest is the host's

#if !defined(__CUDACC__) && !defined(__global__)
#define __global__  // launch_plan.h of an operator declares its kernels, for hosts without CUDA too
#endif

// The GPU that a plan is for. The defaults are an H100's; `shared_bytes` is what one block may have, `capability` the
// compute capability: 90 is 9.0.
struct Gpu {
  int multiprocessors = 132;
  unsigned shared_bytes = 227 * 1024;
  int capability = 90;

  // True where the instructions of the tensor core kernels exist: cp.async, and mma of 16x8x16 16-bit numbers.
  bool runs_tensor_core_kernels() const { return capability >= 80; }
};

// A kernel as a type: `launcher(Kernel<...>, launch, arguments...)` may launch it by its address, or note its
// name.
template <auto FUNCTION>
struct Kernel {};

#endif

}  // namespace tightbeam
