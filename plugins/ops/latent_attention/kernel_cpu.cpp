// A tile of the states gives the scores and then, while it is in the processor's cache, the values.
#include "kernels/cpu/attention/attend_source.h"
#include "ops/latent_attention/arguments.h"

namespace tightbeam {

void latent_attention(const LatentAttentionArguments<float>& a, const Parallel& parallel) {
  const size_t N = a.N, K = a.K, E = a.G * K;
  const SourceRows keys{a.states, N * E, K, E, a.K};
  const SourceRows values{a.states, N * E, 0, E, static_cast<int>(E)};
  const Rotation rotation{a.cosines, a.sines, a.rotary};
  attend_source({a.B, a.M, a.H, a.G, a.N, a.scale, a.softcap, a.weight_threshold, a.query, keys, values, a.mask,
                 rotation, a.key_scales, a.key_bias, a.key_bias_positions, a.output, a.lse},
                parallel);
}

}  // namespace tightbeam
