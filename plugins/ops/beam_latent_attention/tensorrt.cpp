#include "tensorrt/library.h"
#include "ops/beam_latent_attention/launch.h"
#include "ops/beam_latent_attention/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(beam_latent_attention)
