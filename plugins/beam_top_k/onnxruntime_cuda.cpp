#include "common/onnxruntime_cuda.h"
#include "beam_top_k/cuda.h"
#include "beam_top_k/operator.h"

TIGHTBEAM_CUDA_OPERATOR(beam_top_k)
