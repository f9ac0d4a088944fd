// The adapter that makes an operator's table into custom operators of ONNX Runtime, one for each float type.
//
// cpu.cpp gives it a struct for each operator, with the table and the call of the kernel (cuda.cpp has a similar one):
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

// The oldest API with all that is used here; it brought in-place outputs (GetMayInplace). One library works in every
// runtime from 1.18 on: a runtime that reads this number ignores what later headers append to OrtCustomOp.
constexpr uint32_t ORT_API = 18;

using Run = void (*)(Call& call, const OrtApi& api, OrtKernelContext* context);

// A custom operator. OrtCustomOp is its first base, so that a callback's pointer is also the object's pointer.
struct CustomOperator : OrtCustomOp {
  CustomOperator(const Operator& table, ONNXTensorElementDataType type, const char* provider, Run run);

  const Operator& table;
  ONNXTensorElementDataType float_type;
  const char* provider;  // null for the CPU
  Run run;
};

using Operators = std::vector<std::unique_ptr<CustomOperator>>;

// The exception for a failed call of the API.
struct ApiError {
  OrtStatus* status;
};

inline void check(OrtStatus* status) {
  if (status != nullptr) throw ApiError{status};
}

// ONNX Runtime's own threads. The object is valid only while a kernel runs.
class RuntimeThreads final : public Parallel {
 public:
  RuntimeThreads(const OrtApi& api, const OrtKernelContext* context) : api_(api), context_(context) {}

 private:
  void share_out(size_t count, void (*item)(void*, size_t), void* shared) const override {
    check(api_.KernelContext_ParallelFor(context_, item, count, 0, shared));  // 0: a free thread takes the next item
  }

  const OrtApi& api_;
  const OrtKernelContext* context_;
};

// Lists the pairs of input and output that may share memory (an output that `reuses` an input), or that always do
// unless the output is the graph's (one that `updates` an input). The API's callbacks for it have no argument that
// identifies the operator, hence the templates below.
size_t shared_memory(const Operator& table, bool updates, int** inputs, int** outputs);

template <class Kernel, bool UPDATES>
size_t shared_memory_of(int** inputs, int** outputs) {
  return shared_memory(Kernel::table(), UPDATES, inputs, outputs);
}

struct Copy {
  const void* from;
  void* to;
  size_t bytes;
};

// The copies for outputs that update an input, if the runtime has given the two different buffers.
std::vector<Copy> copies(const Call& call);

void copy_updated(const Call& call, const Parallel& parallel);

template <class Kernel, class Float>
void run_on_cpu(Call& call, const OrtApi& api, OrtKernelContext* context) {
  const RuntimeThreads threads(api, context);
  copy_updated(call, threads);
  Kernel::template run<Float>(call, threads);
}

// True if the operator has a kernel for a float type. Every operator has one for float; other types may be widened to
// it.
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
    operators.back()->GetMayInplace = shared_memory_of<Kernel, false>;
    operators.back()->GetAliasMap = shared_memory_of<Kernel, true>;
  };
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, run_or_widen<Kernel, float>);
  if (!Kernel::table().has_float_type()) return;
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, run_or_widen<Kernel, Float16>);
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, run_or_widen<Kernel, BFloat16>);
}

// Add the custom operators of a provider. cuda.cpp has the second function, which is linked only into the CUDA library.
void add_cpu_operators(Operators& operators);
void add_cuda_operators(Operators& operators);

// Adds the operators to a session's options in domain "tightbeam". Each library's RegisterCustomOps calls it.
OrtStatus* register_operators(OrtSessionOptions* options, const OrtApiBase* base, void (*add_all)(Operators&));

}  // namespace tightbeam
