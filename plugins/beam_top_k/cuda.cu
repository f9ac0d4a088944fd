#include "beam_top_k/cuda.h"

#include "common/start.cuh"
#include "beam_top_k/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(beam_top_k, BeamTopKArguments)
