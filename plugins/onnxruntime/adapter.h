// An operator's table as custom operators of ONNX Runtime, one for each float type.
//
// plugins/ops/<op>/onnxruntime.cpp gives the adapter a struct with the table and the call of the kernel:
//
//   struct Kernel {
//     static const Operator& table() { return NGRAM_BLOCK; }
//     template <class Float>
//     static void run(const Call& call, const Parallel& parallel) { ... }
//   };
//   void add_ngram_block(Operators& operators) { add_cpu_operator<Kernel, float>(operators); }
#pragma once

#include <onnxruntime_c_api.h>

#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "kernels/floats.h"
#include "kernels/operator.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/widen.h"

namespace tightbeam {

// The oldest API with all that is used here: in-place outputs (GetMayInplace) came with it. One library serves every
// runtime from 1.18 on; what later headers append to OrtCustomOp is not looked at by a runtime that reads this number.
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

// Pairs of output and input that may share memory; the API's callback for them is given nothing to tell operators by.
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

// What `updates` promises and the runtime has not done by giving input and output one buffer.
std::vector<Copy> copies(const Call& call);

void copy_updated(const Call& call, const Parallel& parallel);

template <class Kernel, class Float>
void run_on_cpu(Call& call, const OrtApi& api, OrtKernelContext* context) {
  const RuntimeThreads threads(api, context);
  copy_updated(call, threads);
  Kernel::template run<Float>(call, threads);
}

// `Floats`: the types that the kernel serves, float among them; it is given the others widened.
template <class Kernel, class Float, class... Floats>
void run_on_cpu_as(Call& call, const OrtApi& api, OrtKernelContext* context) {
  if constexpr ((std::is_same_v<Float, Floats> || ...)) {
    run_on_cpu<Kernel, Float>(call, api, context);
  } else {
    const Type narrow = std::is_same_v<Float, Float16> ? Type::float16 : Type::bfloat16;
    run_widened(call, narrow, RuntimeThreads(api, context), Kernel::template run<float>);
  }
}

template <class Kernel, class... Floats>
void add_cpu_operator(Operators& operators) {
  const auto add = [&](ONNXTensorElementDataType type, Run run) {
    operators.push_back(std::make_unique<CustomOperator>(Kernel::table(), type, nullptr, run));
    operators.back()->GetMayInplace = shared_memory_of<Kernel>;
  };
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, run_on_cpu_as<Kernel, float, Floats...>);
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, run_on_cpu_as<Kernel, Float16, Floats...>);
  add(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, run_on_cpu_as<Kernel, BFloat16, Floats...>);
}

// Adds the operators to a session's options under domain "tightbeam"; what RegisterCustomOps of each library does.
OrtStatus* register_operators(OrtSessionOptions* options, const OrtApiBase* base, void (*add_all)(Operators&));

}  // namespace tightbeam
