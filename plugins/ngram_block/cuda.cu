#include "ngram_block/cuda.h"

#include "common/start.cuh"
#include "ngram_block/cuda.cuh"

TIGHTBEAM_CUDA_LAUNCH(ngram_block, NGramBlockArguments)
