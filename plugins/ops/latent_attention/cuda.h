// LatentAttention on a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/latent_attention/arguments.h"

namespace tightbeam {

// `workspace`: of latent_attention_workspace bytes, on the device. Faults of a launch: cudaGetLastError.
template <class Float>
void launch_latent_attention(const LatentAttentionArguments<Float>& arguments, void* workspace, cudaStream_t stream);
template <class Float>
std::size_t latent_attention_workspace(const LatentAttentionArguments<Float>& arguments);

}  // namespace tightbeam
