#include "onnxruntime/cuda.h"
#include "ops/beam_attention/cuda.h"
#include "ops/beam_attention/operator.h"

TIGHTBEAM_CUDA_OPERATOR(beam_attention)
