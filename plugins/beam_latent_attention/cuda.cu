#include "beam_latent_attention/cuda.h"

#include "beam_latent_attention/cuda.cuh"
#include "common/start.cuh"

namespace tightbeam {

template <class Float>
void launch_beam_latent_attention(const BeamLatentAttentionArguments<Float>& arguments, void*, cudaStream_t stream) {
  device::start_beam_latent_attention(arguments, device::current_gpu(), device::StartOnStream{stream});
}

template <class Float>
std::size_t beam_latent_attention_workspace(const BeamLatentAttentionArguments<Float>&) {
  return 0;
}

template void launch_beam_latent_attention(const BeamLatentAttentionArguments<float>&, void*, cudaStream_t);
template void launch_beam_latent_attention(const BeamLatentAttentionArguments<__half>&, void*, cudaStream_t);
template void launch_beam_latent_attention(const BeamLatentAttentionArguments<__nv_bfloat16>&, void*, cudaStream_t);
template std::size_t beam_latent_attention_workspace(const BeamLatentAttentionArguments<float>&);
template std::size_t beam_latent_attention_workspace(const BeamLatentAttentionArguments<__half>&);
template std::size_t beam_latent_attention_workspace(const BeamLatentAttentionArguments<__nv_bfloat16>&);

}  // namespace tightbeam
