#include "latent_attention/cuda.h"

#include "common/start.cuh"
#include "latent_attention/cuda.cuh"

namespace tightbeam {

template <class Float>
void launch_latent_attention(const LatentAttentionArguments<Float>& arguments, void* workspace, cudaStream_t stream) {
  device::start_latent_attention(arguments, workspace, device::current_gpu(), device::StartOnStream{stream});
}

template <class Float>
std::size_t latent_attention_workspace(const LatentAttentionArguments<Float>& arguments) {
  return plan_latent_attention(arguments, device::current_gpu()).workspace_bytes;
}

template void launch_latent_attention(const LatentAttentionArguments<float>&, void*, cudaStream_t);
template void launch_latent_attention(const LatentAttentionArguments<__half>&, void*, cudaStream_t);
template void launch_latent_attention(const LatentAttentionArguments<__nv_bfloat16>&, void*, cudaStream_t);
template std::size_t latent_attention_workspace(const LatentAttentionArguments<float>&);
template std::size_t latent_attention_workspace(const LatentAttentionArguments<__half>&);
template std::size_t latent_attention_workspace(const LatentAttentionArguments<__nv_bfloat16>&);

}  // namespace tightbeam
