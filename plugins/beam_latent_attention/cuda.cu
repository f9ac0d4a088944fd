#include "beam_latent_attention/cuda.h"

#include "common/start.cuh"
#include "beam_latent_attention/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(beam_latent_attention, BeamLatentAttentionArguments)
