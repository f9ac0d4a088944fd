// SourceAttention on a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/source_attention/arguments.h"

namespace tightbeam {

// `workspace`: of source_attention_workspace bytes, on the device. Faults of a launch: cudaGetLastError.
template <class Float>
void launch_source_attention(const SourceAttentionArguments<Float>& arguments, void* workspace, cudaStream_t stream);
template <class Float>
std::size_t source_attention_workspace(const SourceAttentionArguments<Float>& arguments);

}  // namespace tightbeam
