#include "ops/beam_top_k/cpu.h"
#include "ops/beam_top_k/operator.h"
#include "onnxruntime/adapter.h"

namespace tightbeam {
namespace {

struct Kernel {
  static const Operator& table() { return beam_top_k_table(); }

  template <class Float>
  static void run(const Call& call, const Parallel& parallel) {
    beam_top_k(beam_top_k_arguments<Float>(call), parallel);
  }
};

}  // namespace

void add_beam_top_k(Operators& operators) { add_cpu_operator<Kernel, float>(operators); }

}  // namespace tightbeam
