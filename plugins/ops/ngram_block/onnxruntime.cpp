#include "onnxruntime/adapter.h"
#include "ops/ngram_block/cpu.h"
#include "ops/ngram_block/operator.h"

namespace tightbeam {
namespace {

struct Kernel {
  static const Operator& table() { return ngram_block_table(); }

  template <class Float>
  static void run(const Call& call, const Parallel& parallel) {
    ngram_block(ngram_block_arguments<Float>(call), parallel);
  }
};

}  // namespace

void add_ngram_block(Operators& operators) { add_cpu_operator<Kernel, float, Float16, BFloat16>(operators); }

}  // namespace tightbeam
