// The one symbol of a library: what `register_custom_ops_library`, and `op_library_filename` of Triton's onnxruntime
// backend, look for.
#include "operators.h"

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
