#include "kernels/cpu/math.h"

#include <cmath>

namespace tightbeam {

void cap_scores(float* scores, size_t count, float softcap) {
  if (softcap == 0) return;
  for (size_t i = 0; i < count; ++i) scores[i] = softcap * std::tanh(scores[i] / softcap);
}

}  // namespace tightbeam
