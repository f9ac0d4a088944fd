#include "kernels/cpu/attention/attend_history_bytes.h"
#include "ops/quantized_beam_attention/arguments.h"

namespace tightbeam {

void quantized_beam_attention(const QuantizedBeamAttentionArguments<float>& a, const Parallel& parallel) {
  const size_t queries = static_cast<size_t>(a.H) * a.K, keys = static_cast<size_t>(a.G) * a.K;
  const size_t width = queries + keys + static_cast<size_t>(a.G) * a.V;
  ByteHistory history = history_of<ByteHistory>("QuantizedBeamAttention", a);
  history.query = a.projected;
  history.query_stride = width;
  history.keys = {a.key_cache, a.key_scale_cache, a.projected + queries, width, a.K};
  history.values = {a.value_cache, a.value_scale_cache, a.projected + queries + keys, width, a.V};
  attend_history_bytes(history, parallel);
}

}  // namespace tightbeam
