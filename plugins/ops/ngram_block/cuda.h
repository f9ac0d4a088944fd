// NGramBlock on a CUDA stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/ngram_block/arguments.h"

namespace tightbeam {

// Needs no workspace. Faults of a launch: cudaGetLastError.
template <class Float>
void launch_ngram_block(const NGramBlockArguments<Float>& arguments, void* workspace, cudaStream_t stream);
template <class Float>
std::size_t ngram_block_workspace(const NGramBlockArguments<Float>& arguments);

}  // namespace tightbeam
