#include "beam_attention/cuda.h"

#include "beam_attention/cuda.cuh"
#include "common/start.cuh"

namespace tightbeam {

template <class Float>
void launch_beam_attention(const BeamAttentionArguments<Float>& arguments, void*, cudaStream_t stream) {
  device::start_beam_attention(arguments, device::StartOnStream{stream});
}

template <class Float>
std::size_t beam_attention_workspace(const BeamAttentionArguments<Float>&) {
  return 0;
}

template void launch_beam_attention(const BeamAttentionArguments<float>&, void*, cudaStream_t);
template void launch_beam_attention(const BeamAttentionArguments<__half>&, void*, cudaStream_t);
template void launch_beam_attention(const BeamAttentionArguments<__nv_bfloat16>&, void*, cudaStream_t);
template std::size_t beam_attention_workspace(const BeamAttentionArguments<float>&);
template std::size_t beam_attention_workspace(const BeamAttentionArguments<__half>&);
template std::size_t beam_attention_workspace(const BeamAttentionArguments<__nv_bfloat16>&);

}  // namespace tightbeam
