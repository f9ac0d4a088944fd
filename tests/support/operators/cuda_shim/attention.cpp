// The attention kernels on the host shim, for tests.
#include "entry.h"
#include "ops/beam_attention/kernel_cuda.cuh"
#include "ops/beam_latent_attention/kernel_cuda.cuh"
#include "ops/latent_attention/kernel_cuda.cuh"
#include "ops/source_attention/kernel_cuda.cuh"

TIGHTBEAM_SHIM_KERNELS(source_attention, SourceAttentionArguments)
TIGHTBEAM_SHIM_KERNELS(latent_attention, LatentAttentionArguments)
TIGHTBEAM_SHIM_KERNELS(beam_attention, BeamAttentionArguments)
TIGHTBEAM_SHIM_KERNELS(beam_latent_attention, BeamLatentAttentionArguments)
