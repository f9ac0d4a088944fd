// The attention kernels on the host shim, for tests.
#include "beam_attention/cuda.cuh"
#include "beam_latent_attention/cuda.cuh"
#include "entry.h"
#include "latent_attention/cuda.cuh"
#include "source_attention/cuda.cuh"

extern "C" void set_gpu(int multiprocessors, unsigned shared_bytes) { shim::gpu = {multiprocessors, shared_bytes}; }

TIGHTBEAM_SHIM_ENTRIES(source_attention, SourceAttentionArguments)
TIGHTBEAM_SHIM_ENTRIES(latent_attention, LatentAttentionArguments)
TIGHTBEAM_SHIM_ENTRIES(beam_attention, BeamAttentionArguments)
TIGHTBEAM_SHIM_ENTRIES(beam_latent_attention, BeamLatentAttentionArguments)
