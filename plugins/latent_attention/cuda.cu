#include "latent_attention/cuda.h"

#include "common/start.cuh"
#include "latent_attention/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(latent_attention, LatentAttentionArguments)
