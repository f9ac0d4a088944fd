#include "ops/source_attention/cpu.h"
#include "ops/source_attention/operator.h"
#include "onnxruntime/adapter.h"

namespace tightbeam {
namespace {

struct Kernel {
  static const Operator& table() { return source_attention_table(); }

  template <class Float>
  static void run(const Call& call, const Parallel& parallel) {
    source_attention(source_attention_arguments<Float>(call), parallel);
  }
};

}  // namespace

void add_source_attention(Operators& operators) { add_cpu_operator<Kernel, float>(operators); }

}  // namespace tightbeam
