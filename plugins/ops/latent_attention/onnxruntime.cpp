#include "ops/latent_attention/cpu.h"
#include "ops/latent_attention/operator.h"
#include "onnxruntime/adapter.h"

namespace tightbeam {
namespace {

struct Kernel {
  static const Operator& table() { return latent_attention_table(); }

  template <class Float>
  static void run(const Call& call, const Parallel& parallel) {
    latent_attention(latent_attention_arguments<Float>(call), parallel);
  }
};

}  // namespace

void add_latent_attention(Operators& operators) { add_cpu_operator<Kernel, float>(operators); }

}  // namespace tightbeam
