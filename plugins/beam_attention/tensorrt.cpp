#include "common/tensorrt.h"
#include "beam_attention/launch.h"
#include "beam_attention/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(beam_attention)
