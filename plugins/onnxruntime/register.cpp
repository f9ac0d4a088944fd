// The symbol of a library that `register_custom_ops_library`, and `op_library_filename` of Triton's onnxruntime
// backend, look for.
#include "onnxruntime/adapter.h"

namespace {

void add_all(tightbeam::Operators& operators) {
  tightbeam::add_cpu_operators(operators);
#ifdef TIGHTBEAM_WITH_CUDA
  tightbeam::add_cuda_operators(operators);
#endif
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  return tightbeam::register_operators(options, base, add_all);
}
