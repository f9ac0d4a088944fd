// An operator's table as custom operators of ONNX Runtime, one for each float type.
//
// cpu.cpp and cuda.cpp give the adapter a struct for each operator, with the table and the call of the kernel:
//
//   struct Kernel {
//     static const Operator& table();
//     template <class Float>
//     static void run(const Call& call, const Parallel& parallel);
//   };
#pragma once

#include <onnxruntime_c_api.h>

#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/widen.h"
#include "kernels/floats.h"
#include "kernels/operator.h"

namespace tightbeam {

// The oldest API with all that is used here: in-place outputs (GetMayInplace) came with it. One library serves every
// runtime from 1.18 on; what later headers append to OrtCustomOp is ignored by a runtime that reads this number.
constexpr uint32_t ORT_API = 18;

using Run = void (*)(Call& call, const OrtApi& api, OrtKernelContext* context);

// One custom operator. OrtCustomOp is the first base, so that a callback's pointer is the object's own.
struct CustomOperator : OrtCustomOp {
  CustomOperator(const Operator& table, ONNXTensorElementDataType type, const char* provider, Run run);

  const Operator& table;
  ONNXTensorElementDataType float_type;
  const char* provider;  // nullptr: the CPU
  Run run;
};

using Operators = std::vector<std::unique_ptr<CustomOperator>>;

// Raised for a failed call of the API; holds its status.
struct ApiError {
  OrtStatus* status;
};

inline void check(OrtStatus* status) {
  if (status != nullptr) throw ApiError{status};
}

// ONNX Runtime's own threads; only valid while a kernel runs.
class RuntimeThreads final : public Parallel {
 public:
  RuntimeThreads(const OrtApi& api, const OrtKernelContext* context) : api_(api), context_(context) {}

 private:
  void share_out(size_t count, void (*item)(void*, size_t), void* shared) const override {
    check(api_.KernelContext_ParallelFor(context_, item, count, 0, shared));  // 0: the next free thread takes an item
  }

  const OrtApi& api_;
  const OrtKernelContext* context_;
};

// Pairs of output and input that may share memory. The API's callback for them has no argument that identifies the
// operator.
size_t shared_memory(const Operator& table, int** inputs, int** outputs);

template <class Kernel>
size_t shared_memory_of(int** inputs, int** outputs) {
  return shared_memory(Kernel::table(), inputs, outputs);
}

struct Copy {
  const void* from;
  void* to;
  size_t bytes;
};

// The copies that `updates` requires where the runtime has not given input and output one buffer.
std::vector<Copy> copies(const Call& call);

void copy_updated(const Call& call, const Parallel& parallel);

template <class Kernel, class Float>
void run_on_cpu(Call& call, const OrtApi& api, OrtKernelContext* context) {
  const RuntimeThreads threads(api, context);
  copy_updated(call, threads);
  Kernel::template run<Float>(call, threads);
}

// True where the operator has a kernel for a float type; float always has one, which is given the others widened.
template <class Kernel, class Float, class = void>
constexpr bool has_kernel = false;
template <class Kernel, class Float>
constexpr bool has_kernel<
    Kernel, Float,
    std::void_t<decltype(Kernel::template run<Float>(std::declval<const Call&>(), std::declval<const Parallel&>()))>> =
    true;

template <class Kernel, class Float>
void run_or_widen(Call& call, const OrtApi& api, OrtKernelContext* context) {
  if constexpr (has_kernel<Kernel, Float>) {
    run_on_cpu<Kernel, Float>(call, api, context);
  } else {
    const Type narrow = std::is_same_v<Float, Float16> ? Type::float16 : Type::bfloat16;
    run_widened(call, narrow, RuntimeThreads(api, context), Kernel::template run<float>);
  }
}

template <class Kernel>
void add_cpu_operator(Operators& operators) {
  static_assert(has_kernel<Kernel, float>);
  const auto add = [&](ONNXTensorElementDataType type, Run run) {
    operators.push_back(std::make_unique<CustomOperator>(Kernel::table(), type, nullptr, run));
    operators.back()->GetMayInplace = shared_memory_of<Kernel>;
  };
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, run_or_widen<Kernel, float>);
  if (!Kernel::table().has_float_type()) return;
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, run_or_widen<Kernel, Float16>);
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, run_or_widen<Kernel, BFloat16>);
}

// Add the custom operators of one provider: cpu.cpp, and cuda.cpp, which only the CUDA library is linked with.
void add_cpu_operators(Operators& operators);
void add_cuda_operators(Operators& operators);

// Adds the operators to a session's options under domain "tightbeam"; called by RegisterCustomOps of each library.
OrtStatus* register_operators(OrtSessionOptions* options, const OrtApiBase* base, void (*add_all)(Operators&));

}  // namespace tightbeam
