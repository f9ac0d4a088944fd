#include "common/tensorrt.h"
#include "ngram_block/launch.h"
#include "ngram_block/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(ngram_block)
