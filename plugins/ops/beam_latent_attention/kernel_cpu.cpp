#include "kernels/cpu/attention/attend_history.h"
#include "ops/beam_latent_attention/arguments.h"

namespace tightbeam {

void beam_latent_attention(const BeamLatentAttentionArguments<float>& a, const Parallel& parallel) {
  History history = rotated_history_of("BeamLatentAttention", a);
  history.query = a.query;
  history.query_stride = static_cast<size_t>(a.H) * a.K;
  history.keys = {a.cache, a.row, static_cast<size_t>(a.G) * a.K, a.K};
  history.row_scales = a.row_scales;
  history.scale_cache = a.scale_cache;
  attend_history(history, parallel);
}

}  // namespace tightbeam
