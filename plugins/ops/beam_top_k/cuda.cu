#include "ops/beam_top_k/cuda.h"

#include "kernels/cuda/start.cuh"
#include "ops/beam_top_k/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(beam_top_k, BeamTopKArguments)
