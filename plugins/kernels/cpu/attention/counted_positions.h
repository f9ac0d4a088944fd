// The positions that count under a mask.
#pragma once

#include <cstddef>
#include <vector>

namespace tightbeam {

// The positions of each sample that count, in ascending order; all N if `mask` [B, N] is null.
inline std::vector<std::vector<int>> counted_positions(const bool* mask, int B, int N) {
  std::vector<std::vector<int>> counted(B);
  for (int b = 0; b < B; ++b) {
    counted[b].reserve(N);
    for (int n = 0; n < N; ++n)
      if (mask == nullptr || mask[static_cast<size_t>(b) * N + n]) counted[b].push_back(n);
  }
  return counted;
}

}  // namespace tightbeam
