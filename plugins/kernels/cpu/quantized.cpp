#include "kernels/cpu/quantized.h"

#include "kernels/cpu/instruction_sets.h"

namespace tightbeam {

extern const Quantized QUANTIZED_baseline;
#ifdef TIGHTBEAM_X86_64
extern const Quantized QUANTIZED_v3;
extern const Quantized QUANTIZED_v3_vnni;
extern const Quantized QUANTIZED_v4;
extern const Quantized QUANTIZED_v4_vnni;
#endif

const Quantized& quantized() {
#ifdef TIGHTBEAM_X86_64
  switch (best_instruction_set()) {
    case InstructionSet::v4_vnni: return QUANTIZED_v4_vnni;
    case InstructionSet::v4: return QUANTIZED_v4;
    case InstructionSet::v3_vnni: return QUANTIZED_v3_vnni;
    case InstructionSet::v3: return QUANTIZED_v3;
    case InstructionSet::baseline: break;
  }
#endif
  return QUANTIZED_baseline;
}

}  // namespace tightbeam
