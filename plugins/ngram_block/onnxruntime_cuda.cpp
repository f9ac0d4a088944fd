#include "common/onnxruntime_cuda.h"
#include "ngram_block/cuda.h"
#include "ngram_block/operator.h"

TIGHTBEAM_CUDA_OPERATOR(ngram_block)
