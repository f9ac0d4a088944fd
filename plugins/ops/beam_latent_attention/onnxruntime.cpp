#include "ops/beam_latent_attention/cpu.h"
#include "ops/beam_latent_attention/operator.h"
#include "onnxruntime/adapter.h"

namespace tightbeam {
namespace {

struct Kernel {
  static const Operator& table() { return beam_latent_attention_table(); }

  template <class Float>
  static void run(const Call& call, const Parallel& parallel) {
    beam_latent_attention(beam_latent_attention_arguments<Float>(call), parallel);
  }
};

}  // namespace

void add_beam_latent_attention(Operators& operators) { add_cpu_operator<Kernel, float>(operators); }

}  // namespace tightbeam
