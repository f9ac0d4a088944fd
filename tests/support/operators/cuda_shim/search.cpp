// The kernels of NGramBlock and BeamTopK on the host shim, for tests.
#include "entry.h"
#include "ops/beam_top_k/kernel_cuda.cuh"
#include "ops/ngram_block/kernel_cuda.cuh"

TIGHTBEAM_SHIM_KERNELS(ngram_block, NGramBlockArguments)
TIGHTBEAM_SHIM_KERNELS(beam_top_k, BeamTopKArguments)
