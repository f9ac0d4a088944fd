#include "tensorrt/library.h"
#include "ops/latent_attention/launch.h"
#include "ops/latent_attention/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(latent_attention)
