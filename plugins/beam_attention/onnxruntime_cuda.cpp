#include "common/onnxruntime_cuda.h"
#include "beam_attention/cuda.h"
#include "beam_attention/operator.h"

TIGHTBEAM_CUDA_OPERATOR(beam_attention)
