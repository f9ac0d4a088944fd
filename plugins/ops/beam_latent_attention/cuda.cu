#include "ops/beam_latent_attention/cuda.h"

#include "kernels/cuda/start.cuh"
#include "ops/beam_latent_attention/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(beam_latent_attention, BeamLatentAttentionArguments)
