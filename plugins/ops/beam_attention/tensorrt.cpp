#include "tensorrt/library.h"
#include "ops/beam_attention/launch.h"
#include "ops/beam_attention/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(beam_attention)
