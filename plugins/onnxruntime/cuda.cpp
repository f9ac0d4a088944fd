// The operators of the CUDA provider.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <string>

#include "generated/arguments.h"
#include "generated/operators.h"
#include "onnxruntime/adapter.h"

namespace tightbeam {

// TIGHTBEAM_LAUNCH_ON_STREAM defines these in a generated file for each operator.
#define TIGHTBEAM_DECLARE(op, Arguments)                                                     \
  template <class Float>                                                                     \
  void launch_##op(const Arguments<Float>& arguments, void* workspace, cudaStream_t stream); \
  template <class Float>                                                                     \
  size_t op##_workspace(const Arguments<Float>& arguments);
TIGHTBEAM_GPU_OPERATORS(TIGHTBEAM_DECLARE)
#undef TIGHTBEAM_DECLARE

namespace {

// A run of a node on the runtime's stream. All work is enqueued, and nothing waits for the device.
class CudaRun {
 public:
  CudaRun(const Call& call, const OrtApi& api, OrtKernelContext* context);

  cudaStream_t stream() const { return stream_; }

  // Enqueues the copies for outputs that update an input, unless the two share a buffer.
  void copy_updated() const;

  // Raises OperatorError if a kernel could not be enqueued.
  void check_launch() const;

 private:
  const Call& call_;
  cudaStream_t stream_ = nullptr;
};

// Device memory from the runtime's arena for one run. A later use on another stream waits for this stream.
class Workspace {
 public:
  Workspace(const OrtApi& api, const OrtKernelContext* context, size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }

 private:
  const OrtApi& api_;
  OrtAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
};

struct ReleaseMemoryInfo {
  const OrtApi& api;
  void operator()(OrtMemoryInfo* info) const { api.ReleaseMemoryInfo(info); }
};

void check_cuda(const Call& call, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // so that the next operator's check does not find this error
  call.fail(std::string("CUDA: ") + cudaGetErrorString(error));
}

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

template <class Kernel, class Float>
void run_on_cuda(Call& call, const OrtApi& api, OrtKernelContext* context) {
  const CudaRun run(call, api, context);
  run.copy_updated();
  const auto arguments = Kernel::template arguments<Float>(call);
  const Workspace workspace(api, context, Kernel::workspace(arguments));
  Kernel::launch(arguments, workspace.data(), run.stream());
  run.check_launch();
}

template <class Kernel>
void add_cuda_operator(Operators& operators) {
  const auto add = [&](ONNXTensorElementDataType type, Run run) {
    operators.push_back(std::make_unique<CustomOperator>(Kernel::table(), type, "CUDAExecutionProvider", run));
    operators.back()->GetMayInplace = shared_memory_of<Kernel, false>;
    operators.back()->GetAliasMap = shared_memory_of<Kernel, true>;
  };
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, run_on_cuda<Kernel, float>);
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, run_on_cuda<Kernel, __half>);
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, run_on_cuda<Kernel, __nv_bfloat16>);
}

#define TIGHTBEAM_KERNEL(op, Arguments)                                                           \
  struct op##_kernel {                                                                            \
    static const Operator& table() { return op##_table(); }                                       \
    template <class Float>                                                                        \
    static Arguments<Float> arguments(const Call& call) {                                         \
      return op##_arguments<Float>(call);                                                         \
    }                                                                                             \
    template <class Float>                                                                        \
    static size_t workspace(const Arguments<Float>& arguments) {                                  \
      return op##_workspace(arguments);                                                           \
    }                                                                                             \
    template <class Float>                                                                        \
    static void launch(const Arguments<Float>& arguments, void* workspace, cudaStream_t stream) { \
      launch_##op(arguments, workspace, stream);                                                  \
    }                                                                                             \
  };
TIGHTBEAM_GPU_OPERATORS(TIGHTBEAM_KERNEL)
#undef TIGHTBEAM_KERNEL

}  // namespace

void add_cuda_operators(Operators& operators) {
#define TIGHTBEAM_ADD(op, Arguments) add_cuda_operator<op##_kernel>(operators);
  TIGHTBEAM_GPU_OPERATORS(TIGHTBEAM_ADD)
#undef TIGHTBEAM_ADD
}

}  // namespace tightbeam
