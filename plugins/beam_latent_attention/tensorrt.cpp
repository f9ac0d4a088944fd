#include "common/tensorrt.h"
#include "beam_latent_attention/launch.h"
#include "beam_latent_attention/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(beam_latent_attention)
