#include "common/tensorrt.h"
#include "beam_top_k/launch.h"
#include "beam_top_k/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(beam_top_k)
