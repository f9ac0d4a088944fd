// The positions that a mask leaves.
#pragma once

#include <cstddef>
#include <vector>

namespace tightbeam {

// Positions of each of B samples that count, ascending; all N where `mask` [B, N] is null.
inline std::vector<std::vector<int>> counted_positions(const bool* mask, int B, int N) {
  std::vector<std::vector<int>> counted(B);
  for (int b = 0; b < B; ++b)
    for (int n = 0; n < N; ++n)
      if (mask == nullptr || mask[static_cast<size_t>(b) * N + n]) counted[b].push_back(n);
  return counted;
}

}  // namespace tightbeam
