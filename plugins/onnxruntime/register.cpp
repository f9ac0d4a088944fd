// The function of a library that ONNX Runtime's `register_custom_ops_library`, and `op_library_filename` of Triton's
// onnxruntime backend, look for.
#include <algorithm>

#include "generated/operators.h"
#include "kernels/exported.h"
#include "onnxruntime/adapter.h"

namespace {

#ifdef TIGHTBEAM_WITH_CUDA
bool has_cuda_kernel(const tightbeam::Operator& table) {
#define TIGHTBEAM_IS(op, Arguments) || &table == &tightbeam::op##_table()
  return false TIGHTBEAM_GPU_OPERATORS(TIGHTBEAM_IS);
#undef TIGHTBEAM_IS
}
#endif

void add_all(tightbeam::Operators& operators) {
  tightbeam::add_cpu_operators(operators);
#ifdef TIGHTBEAM_WITH_CUDA
  // An operator without a CUDA kernel would run on the CPU in the middle of a graph on the GPU. Its function runs on
  // the GPU instead.
  const auto lacks_kernel = [](const auto& op) { return !has_cuda_kernel(op->table); };
  operators.erase(std::remove_if(operators.begin(), operators.end(), lacks_kernel), operators.end());
  tightbeam::add_cuda_operators(operators);
#endif
}

}  // namespace

TIGHTBEAM_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  return tightbeam::register_operators(options, base, add_all);
}
