// BeamTopK on a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/beam_top_k/arguments.h"

namespace tightbeam {

// `workspace`: of beam_top_k_workspace bytes, on the device. Faults of a launch: cudaGetLastError.
// A sample with values that are not valid gets tokens -1, beams 0 and scores NaN.
template <class Float>
void launch_beam_top_k(const BeamTopKArguments<Float>& arguments, void* workspace, cudaStream_t stream);
template <class Float>
std::size_t beam_top_k_workspace(const BeamTopKArguments<Float>& arguments);

}  // namespace tightbeam
