#include "ngram_block/cuda.h"

#include "common/start.cuh"
#include "ngram_block/cuda.cuh"

namespace tightbeam {

template <class Float>
void launch_ngram_block(const NGramBlockArguments<Float>& arguments, void*, cudaStream_t stream) {
  device::start_ngram_block(arguments, device::StartOnStream{stream});
}

template <class Float>
std::size_t ngram_block_workspace(const NGramBlockArguments<Float>&) {
  return 0;
}

template void launch_ngram_block(const NGramBlockArguments<float>&, void*, cudaStream_t);
template void launch_ngram_block(const NGramBlockArguments<__half>&, void*, cudaStream_t);
template void launch_ngram_block(const NGramBlockArguments<__nv_bfloat16>&, void*, cudaStream_t);
template std::size_t ngram_block_workspace(const NGramBlockArguments<float>&);
template std::size_t ngram_block_workspace(const NGramBlockArguments<__half>&);
template std::size_t ngram_block_workspace(const NGramBlockArguments<__nv_bfloat16>&);

}  // namespace tightbeam
