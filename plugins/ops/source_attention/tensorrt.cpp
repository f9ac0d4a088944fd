#include "tensorrt/library.h"
#include "ops/source_attention/launch.h"
#include "ops/source_attention/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(source_attention)
