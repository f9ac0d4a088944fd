#include "beam_attention/cuda.h"

#include "common/start.cuh"
#include "beam_attention/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(beam_attention, BeamAttentionArguments)
