#include "ops/latent_attention/cuda.h"

#include "kernels/cuda/start.cuh"
#include "ops/latent_attention/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(latent_attention, LatentAttentionArguments)
