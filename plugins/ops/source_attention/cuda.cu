#include "ops/source_attention/cuda.h"

#include "kernels/cuda/start.cuh"
#include "ops/source_attention/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(source_attention, SourceAttentionArguments)
