#include "ops/beam_attention/cpu.h"
#include "ops/beam_attention/operator.h"
#include "onnxruntime/adapter.h"

namespace tightbeam {
namespace {

struct Kernel {
  static const Operator& table() { return beam_attention_table(); }

  template <class Float>
  static void run(const Call& call, const Parallel& parallel) {
    beam_attention(beam_attention_arguments<Float>(call), parallel);
  }
};

}  // namespace

void add_beam_attention(Operators& operators) { add_cpu_operator<Kernel, float>(operators); }

}  // namespace tightbeam
