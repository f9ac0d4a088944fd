#include "source_attention/cuda.h"

#include "common/start.cuh"
#include "source_attention/cuda.cuh"

namespace tightbeam {

template <class Float>
void launch_source_attention(const SourceAttentionArguments<Float>& arguments, void* workspace, cudaStream_t stream) {
  device::start_source_attention(arguments, workspace, device::current_gpu(), device::StartOnStream{stream});
}

template <class Float>
std::size_t source_attention_workspace(const SourceAttentionArguments<Float>& arguments) {
  return plan_source_attention(arguments, device::current_gpu()).workspace_bytes;
}

template void launch_source_attention(const SourceAttentionArguments<float>&, void*, cudaStream_t);
template void launch_source_attention(const SourceAttentionArguments<__half>&, void*, cudaStream_t);
template void launch_source_attention(const SourceAttentionArguments<__nv_bfloat16>&, void*, cudaStream_t);
template std::size_t source_attention_workspace(const SourceAttentionArguments<float>&);
template std::size_t source_attention_workspace(const SourceAttentionArguments<__half>&);
template std::size_t source_attention_workspace(const SourceAttentionArguments<__nv_bfloat16>&);

}  // namespace tightbeam
