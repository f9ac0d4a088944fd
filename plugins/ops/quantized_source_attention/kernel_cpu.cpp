#include "kernels/cpu/attention/attend_bytes.h"
#include "ops/quantized_source_attention/arguments.h"

namespace tightbeam {

void quantized_source_attention(const QuantizedSourceAttentionArguments<float>& a, const Parallel& parallel) {
  const size_t N = a.N, K = a.K, V = a.V, G = a.G;
  const ByteSourceRows keys{a.key, G * N * K, N * K, K, a.K, a.key_scale, G * N, N};
  const ByteSourceRows values{a.value, G * N * V, N * V, V, a.V, a.value_scale, G * N, N};
  attend_bytes({a.B, a.M, a.H, a.G, a.N, a.scale, a.softcap, a.weight_threshold, a.query, keys, values, a.mask,
                a.key_bias, a.key_bias_positions, a.output, a.lse},
               parallel);
}

}  // namespace tightbeam
