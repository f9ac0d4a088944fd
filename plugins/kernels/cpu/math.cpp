#include "kernels/cpu/math.h"

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

}  // namespace tightbeam
