// The one symbol of a library: what `register_custom_ops_library`, and `op_library_filename` of Triton's onnxruntime
// backend, look for.
#include "onnxruntime/adapter.h"
#include "ops/operators.h"

namespace tightbeam {

// Each in plugins/ops/<op>/onnxruntime.cpp, and in onnxruntime_cuda.cpp, which only the CUDA library is linked with.
#define TIGHTBEAM_DECLARE(op)            \
  void add_##op(Operators& operators); \
  void add_##op##_cuda(Operators& operators);
TIGHTBEAM_OPERATORS(TIGHTBEAM_DECLARE)
#undef TIGHTBEAM_DECLARE

}  // namespace tightbeam

namespace {

void add_all(tightbeam::Operators& operators) {
#define TIGHTBEAM_ADD(op) tightbeam::add_##op(operators);
  TIGHTBEAM_OPERATORS(TIGHTBEAM_ADD)
#undef TIGHTBEAM_ADD
#ifdef TIGHTBEAM_WITH_CUDA
#define TIGHTBEAM_ADD(op) tightbeam::add_##op##_cuda(operators);
  TIGHTBEAM_OPERATORS(TIGHTBEAM_ADD)
#undef TIGHTBEAM_ADD
#endif
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  return tightbeam::register_operators(options, base, add_all);
}
