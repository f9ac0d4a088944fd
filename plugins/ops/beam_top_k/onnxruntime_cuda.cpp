#include "onnxruntime/cuda.h"
#include "ops/beam_top_k/cuda.h"
#include "ops/beam_top_k/operator.h"

TIGHTBEAM_CUDA_OPERATOR(beam_top_k)
