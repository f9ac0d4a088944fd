#include "onnxruntime/cuda.h"
#include "ops/source_attention/cuda.h"
#include "ops/source_attention/operator.h"

TIGHTBEAM_CUDA_OPERATOR(source_attention)
