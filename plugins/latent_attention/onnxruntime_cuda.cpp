#include "common/onnxruntime_cuda.h"
#include "latent_attention/cuda.h"
#include "latent_attention/operator.h"

TIGHTBEAM_CUDA_OPERATOR(latent_attention)
