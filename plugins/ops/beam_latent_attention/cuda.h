// BeamLatentAttention on a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/beam_latent_attention/arguments.h"

namespace tightbeam {

// `workspace`: of beam_latent_attention_workspace bytes, on the device. Faults of a launch: cudaGetLastError.
template <class Float>
void launch_beam_latent_attention(const BeamLatentAttentionArguments<Float>& arguments, void* workspace,
                                  cudaStream_t stream);
template <class Float>
std::size_t beam_latent_attention_workspace(const BeamLatentAttentionArguments<Float>& arguments);

}  // namespace tightbeam
