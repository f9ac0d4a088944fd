#include "kernels/cpu/math.h"

#include <cmath>

#include "kernels/cpu/instruction_sets.h"

namespace tightbeam {

extern const Math MATH_baseline;
#ifdef TIGHTBEAM_X86_64
extern const Math MATH_v3;
extern const Math MATH_v4;
#endif

const Math& math() {
#ifdef TIGHTBEAM_X86_64
  const InstructionSet best = best_instruction_set();
  if (best >= InstructionSet::v4) return MATH_v4;
  if (best >= InstructionSet::v3) return MATH_v3;
#endif
  return MATH_baseline;
}

void cap_scores(float* scores, size_t count, float softcap) {
  if (softcap == 0) return;
  for (size_t i = 0; i < count; ++i) scores[i] = softcap * std::tanh(scores[i] / softcap);
}

}  // namespace tightbeam
