#include "kernels/cpu/attention/attend_bytes.h"
#include "ops/quantized_latent_attention/arguments.h"

namespace tightbeam {

void quantized_latent_attention(const QuantizedLatentAttentionArguments<float>& a, const Parallel& parallel) {
  const size_t N = a.N, K = a.K, E = a.G * K;
  const ByteSourceRows keys{a.states, N * E, K, E, a.K, a.states_scale, N, 0};
  const ByteSourceRows values{a.states, N * E, 0, E, static_cast<int>(E), a.states_scale, N, 0};
  attend_bytes({a.B, a.M, a.H, a.G, a.N, a.scale, a.softcap, a.weight_threshold, a.query, keys, values, a.mask,
                a.key_bias, a.key_bias_positions, a.output, a.lse},
               parallel);
}

}  // namespace tightbeam
