#include "common/tensorrt.h"
#include "latent_attention/launch.h"
#include "latent_attention/operator.h"

TIGHTBEAM_TENSORRT_OPERATOR(latent_attention)
