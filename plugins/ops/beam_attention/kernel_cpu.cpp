#include "kernels/cpu/attention/attend_history.h"
#include "ops/beam_attention/arguments.h"

namespace tightbeam {

void beam_attention(const BeamAttentionArguments<float>& a, const Parallel& parallel) {
  const size_t queries = static_cast<size_t>(a.H) * a.K, keys = static_cast<size_t>(a.G) * a.K;
  const size_t width = queries + keys + static_cast<size_t>(a.G) * a.V;
  History history = rotated_history_of("BeamAttention", a);
  history.query = a.projected;
  history.query_stride = width;
  history.keys = {a.key_cache, a.projected + queries, width, a.K};
  history.values = {a.value_cache, a.projected + queries + keys, width, a.V};
  attend_history(history, parallel);
}

}  // namespace tightbeam
