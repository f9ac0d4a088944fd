#include "kernels/cpu/attention/attend_source.h"
#include "ops/source_attention/arguments.h"

namespace tightbeam {

void source_attention(const SourceAttentionArguments<float>& a, const Parallel& parallel) {
  const size_t N = a.N, K = a.K, V = a.V;
  const SourceRows keys{a.key, a.G * N * K, N * K, K, a.K};
  const SourceRows values{a.value, a.G * N * V, N * V, V, a.V};
  attend_source({a.B,
                 a.M,
                 a.H,
                 a.G,
                 a.N,
                 a.scale,
                 a.softcap,
                 a.weight_threshold,
                 a.query,
                 keys,
                 values,
                 a.mask,
                 {},
                 nullptr,
                 a.key_bias,
                 a.key_bias_positions,
                 a.output,
                 a.lse},
                parallel);
}

}  // namespace tightbeam
