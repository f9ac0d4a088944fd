#include "source_attention/cuda.h"

#include "common/start.cuh"
#include "source_attention/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(source_attention, SourceAttentionArguments)
