// BeamAttention on a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/beam_attention/arguments.h"

namespace tightbeam {

// `workspace`: of beam_attention_workspace bytes, on the device. Faults of a launch: cudaGetLastError.
template <class Float>
void launch_beam_attention(const BeamAttentionArguments<Float>& arguments, void* workspace, cudaStream_t stream);
template <class Float>
std::size_t beam_attention_workspace(const BeamAttentionArguments<Float>& arguments);

}  // namespace tightbeam
