#include "onnxruntime/cuda.h"
#include "ops/ngram_block/cuda.h"
#include "ops/ngram_block/operator.h"

TIGHTBEAM_CUDA_OPERATOR(ngram_block)
