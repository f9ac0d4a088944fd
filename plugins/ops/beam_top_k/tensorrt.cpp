#include "tensorrt/library.h"
#include "ops/beam_top_k/launch.h"
#include "ops/beam_top_k/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(beam_top_k)
