#include "common/onnxruntime_cuda.h"
#include "beam_latent_attention/cuda.h"
#include "beam_latent_attention/operator.h"

TIGHTBEAM_CUDA_OPERATOR(beam_latent_attention)
