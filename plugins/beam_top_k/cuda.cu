#include "beam_top_k/cuda.h"

#include "beam_top_k/cuda.cuh"
#include "common/start.cuh"

namespace tightbeam {

template <class Float>
void launch_beam_top_k(const BeamTopKArguments<Float>& arguments, void* workspace, cudaStream_t stream) {
  device::start_beam_top_k(arguments, workspace, device::StartOnStream{stream});
}

template <class Float>
std::size_t beam_top_k_workspace(const BeamTopKArguments<Float>& arguments) {
  return plan_beam_top_k(arguments, nullptr).workspace_bytes;
}

template void launch_beam_top_k(const BeamTopKArguments<float>&, void*, cudaStream_t);
template void launch_beam_top_k(const BeamTopKArguments<__half>&, void*, cudaStream_t);
template void launch_beam_top_k(const BeamTopKArguments<__nv_bfloat16>&, void*, cudaStream_t);
template std::size_t beam_top_k_workspace(const BeamTopKArguments<float>&);
template std::size_t beam_top_k_workspace(const BeamTopKArguments<__half>&);
template std::size_t beam_top_k_workspace(const BeamTopKArguments<__nv_bfloat16>&);

}  // namespace tightbeam
