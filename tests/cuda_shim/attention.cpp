// The attention kernels on the host shim, for tests.
#include "beam_attention/cuda.cuh"
#include "beam_latent_attention/cuda.cuh"
#include "entry.h"
#include "latent_attention/cuda.cuh"
#include "source_attention/cuda.cuh"

using namespace tightbeam;

// The GPU that plans are made for.
static Gpu gpu;
extern "C" void set_gpu(int multiprocessors, unsigned shared_bytes) { gpu = {multiprocessors, shared_bytes}; }

template <class Float>
void source_attention(const SourceAttentionArguments<Float>& arguments, int order) {
  const shim::Workspace workspace(plan_source_attention(arguments, gpu).workspace_bytes);
  device::start_source_attention(arguments, workspace.bytes(), gpu, shim::StartOnHost{order});
}
TIGHTBEAM_SHIM_ENTRIES(source_attention, SourceAttentionArguments)

template <class Float>
void latent_attention(const LatentAttentionArguments<Float>& arguments, int order) {
  const shim::Workspace workspace(plan_latent_attention(arguments, gpu).workspace_bytes);
  device::start_latent_attention(arguments, workspace.bytes(), gpu, shim::StartOnHost{order});
}
TIGHTBEAM_SHIM_ENTRIES(latent_attention, LatentAttentionArguments)

template <class Float>
void beam_attention(const BeamAttentionArguments<Float>& arguments, int order) {
  device::start_beam_attention(arguments, shim::StartOnHost{order});
}
TIGHTBEAM_SHIM_ENTRIES(beam_attention, BeamAttentionArguments)

template <class Float>
void beam_latent_attention(const BeamLatentAttentionArguments<Float>& arguments, int order) {
  device::start_beam_latent_attention(arguments, gpu, shim::StartOnHost{order});
}
TIGHTBEAM_SHIM_ENTRIES(beam_latent_attention, BeamLatentAttentionArguments)
