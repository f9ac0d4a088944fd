// An operator as custom operators of ONNX Runtime's CUDA provider, one for each float type.
//
// plugins/ops/<op>/onnxruntime_cuda.cpp is its headers and one line: TIGHTBEAM_CUDA_OPERATOR(<op>)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include "onnxruntime/adapter.h"

namespace tightbeam {

// A node's run on the runtime's stream. Everything is enqueued; nothing waits for the device.
class CudaRun {
 public:
  CudaRun(const Call& call, const OrtApi& api, OrtKernelContext* context);

  cudaStream_t stream() const { return stream_; }

  // Enqueues what `updates` promises, unless input and output are one buffer.
  void copy_updated() const;

  // Raises OperatorError where something could not be enqueued.
  void check_launch() const;

 private:
  const Call& call_;
  cudaStream_t stream_ = nullptr;
};

// Device memory from the runtime's arena, for one run: what another stream may do with it later waits for this stream.
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
    operators.back()->GetMayInplace = shared_memory_of<Kernel>;
  };
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, run_on_cuda<Kernel, float>);
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, run_on_cuda<Kernel, __half>);
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, run_on_cuda<Kernel, __nv_bfloat16>);
}

// Defines add_<op>_cuda out of <op>_table and <op>_arguments (operator.h), launch_<op> and <op>_workspace (cuda.h).
#define TIGHTBEAM_CUDA_OPERATOR(op)                                                    \
  namespace tightbeam {                                                                \
  namespace {                                                                          \
  struct Kernel {                                                                      \
    static const Operator& table() { return op##_table(); }                            \
    template <class Float>                                                             \
    static auto arguments(const Call& call) {                                          \
      return op##_arguments<Float>(call);                                              \
    }                                                                                  \
    template <class Arguments>                                                         \
    static size_t workspace(const Arguments& arguments) {                              \
      return op##_workspace(arguments);                                                \
    }                                                                                  \
    template <class Arguments>                                                         \
    static void launch(const Arguments& arguments, void* space, cudaStream_t stream) { \
      launch_##op(arguments, space, stream);                                           \
    }                                                                                  \
  };                                                                                   \
  }                                                                                    \
  void add_##op##_cuda(Operators& operators) { add_cuda_operator<Kernel>(operators); } \
  }

}  // namespace tightbeam
