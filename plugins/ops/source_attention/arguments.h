// What a kernel of SourceAttention is given. Letters: docs/design.md, Letters. R = B x M rows.
#pragma once

namespace tightbeam {

template <class Float>
struct SourceAttentionArguments {
  int B, M, H, G, K, V, N;
  float scale;
  float weight_threshold;  // a position whose weight is below it may be left out of the values; 0: none is

  const Float* query;  // [R, H K]
  const Float* key;    // [B, G, N, K]: once a sample
  const Float* value;  // [B, G, N, V]
  const bool* mask;    // [B, N]: which positions count

  Float* output;  // [R, H V]
  float* lse;     // [R, H]: log of the sum of exponentials of the scaled scores; or null
};

}  // namespace tightbeam
