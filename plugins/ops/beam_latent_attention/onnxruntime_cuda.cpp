#include "onnxruntime/cuda.h"
#include "ops/beam_latent_attention/cuda.h"
#include "ops/beam_latent_attention/operator.h"

TIGHTBEAM_CUDA_OPERATOR(beam_latent_attention)
