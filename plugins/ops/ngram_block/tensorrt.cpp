#include "tensorrt/library.h"
#include "ops/ngram_block/launch.h"
#include "ops/ngram_block/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(ngram_block)
