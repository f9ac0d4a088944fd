// The operators of the CPU provider.
#include "generated/arguments.h"
#include "generated/operators.h"
#include "onnxruntime/adapter.h"

namespace tightbeam {
namespace {

// `run` exists for the float types for which the operator's kernel_cpu.cpp has a kernel.
#define TIGHTBEAM_KERNEL(op, Arguments)                                      \
  struct op##_kernel {                                                       \
    static const Operator& table() { return op##_table(); }                  \
    template <class Float>                                                   \
    static auto run(const Call& call, const Parallel& parallel)              \
        -> decltype(op(std::declval<const Arguments<Float>&>(), parallel)) { \
      op(op##_arguments<Float>(call), parallel);                             \
    }                                                                        \
  };
TIGHTBEAM_OPERATORS(TIGHTBEAM_KERNEL)
#undef TIGHTBEAM_KERNEL

}  // namespace

void add_cpu_operators(Operators& operators) {
#define TIGHTBEAM_ADD(op, Arguments) add_cpu_operator<op##_kernel>(operators);
  TIGHTBEAM_OPERATORS(TIGHTBEAM_ADD)
#undef TIGHTBEAM_ADD
}

}  // namespace tightbeam
