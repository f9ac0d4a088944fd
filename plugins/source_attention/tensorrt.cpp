#include "common/tensorrt.h"
#include "source_attention/launch.h"
#include "source_attention/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(source_attention)
