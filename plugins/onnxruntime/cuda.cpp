#include "onnxruntime/cuda.h"

#include <string>

namespace tightbeam {
namespace {

struct ReleaseMemoryInfo {
  const OrtApi& api;
  void operator()(OrtMemoryInfo* info) const { api.ReleaseMemoryInfo(info); }
};

void check_cuda(const Call& call, cudaError_t error) {
  if (error != cudaSuccess) call.fail(std::string("CUDA: ") + cudaGetErrorString(error));
}

}  // namespace

CudaRun::CudaRun(const Call& call, const OrtApi& api, OrtKernelContext* context) : call_(call) {
  void* stream = nullptr;
  check(api.KernelContext_GetGPUComputeStream(context, &stream));
  stream_ = static_cast<cudaStream_t>(stream);
}

void CudaRun::copy_updated() const {
  for (const Copy& copy : copies(call_))
    check_cuda(call_, cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDeviceToDevice, stream_));
}

void CudaRun::check_launch() const { check_cuda(call_, cudaGetLastError()); }

Workspace::Workspace(const OrtApi& api, const OrtKernelContext* context, size_t bytes) : api_(api) {
  if (bytes == 0) return;
  int device = 0;
  cudaGetDevice(&device);
  OrtMemoryInfo* made = nullptr;
  check(api.CreateMemoryInfo("Cuda", OrtDeviceAllocator, device, OrtMemTypeDefault, &made));
  const std::unique_ptr<OrtMemoryInfo, ReleaseMemoryInfo> info(made, ReleaseMemoryInfo{api});
  check(api.KernelContext_GetAllocator(context, made, &allocator_));
  if (OrtStatus* failed = api.KernelContext_GetScratchBuffer(context, made, bytes, &data_)) {
    api.ReleaseAllocator(allocator_);
    throw ApiError{failed};
  }
}

Workspace::~Workspace() {
  if (allocator_ == nullptr) return;
  allocator_->Free(allocator_, data_);
  api_.ReleaseAllocator(allocator_);
}

}  // namespace tightbeam
