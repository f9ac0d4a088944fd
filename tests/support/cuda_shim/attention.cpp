// The attention kernels on the host shim, for tests.
#include "ops/beam_attention/cuda.cuh"
#include "ops/beam_latent_attention/cuda.cuh"
#include "entry.h"
#include "ops/latent_attention/cuda.cuh"
#include "ops/source_attention/cuda.cuh"

extern "C" void set_gpu(int multiprocessors, unsigned shared_bytes) { shim::gpu = {multiprocessors, shared_bytes}; }

TIGHTBEAM_SHIM_ENTRIES(source_attention, SourceAttentionArguments)
TIGHTBEAM_SHIM_ENTRIES(latent_attention, LatentAttentionArguments)
TIGHTBEAM_SHIM_ENTRIES(beam_attention, BeamAttentionArguments)
TIGHTBEAM_SHIM_ENTRIES(beam_latent_attention, BeamLatentAttentionArguments)
