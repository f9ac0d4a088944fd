#include "common/onnxruntime_cuda.h"
#include "source_attention/cuda.h"
#include "source_attention/operator.h"

TIGHTBEAM_CUDA_OPERATOR(source_attention)
