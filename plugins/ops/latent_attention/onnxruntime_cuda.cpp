#include "onnxruntime/cuda.h"
#include "ops/latent_attention/cuda.h"
#include "ops/latent_attention/operator.h"

TIGHTBEAM_CUDA_OPERATOR(latent_attention)
