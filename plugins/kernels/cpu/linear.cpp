#include "kernels/cpu/linear.h"

#include "kernels/cpu/instruction_sets.h"

namespace tightbeam {

extern const LinearKernels LINEAR_baseline;
#ifdef TIGHTBEAM_X86_64
extern const LinearKernels LINEAR_v3;
extern const LinearKernels LINEAR_v4;
#endif

const LinearKernels& linear_kernels() {
#ifdef TIGHTBEAM_X86_64
  const InstructionSet best = best_instruction_set();
  if (best >= InstructionSet::v4) return LINEAR_v4;
  if (best >= InstructionSet::v3) return LINEAR_v3;
#endif
  return LINEAR_baseline;
}

}  // namespace tightbeam
