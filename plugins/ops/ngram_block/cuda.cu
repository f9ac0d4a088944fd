#include "ops/ngram_block/cuda.h"

#include "kernels/cuda/start.cuh"
#include "ops/ngram_block/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(ngram_block, NGramBlockArguments)
