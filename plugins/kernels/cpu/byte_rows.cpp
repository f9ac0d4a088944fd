#include "kernels/cpu/byte_rows.h"

#include "kernels/cpu/instruction_sets.h"

namespace tightbeam {

extern const ByteRows BYTE_ROWS_baseline;
#ifdef TIGHTBEAM_X86_64
extern const ByteRows BYTE_ROWS_v3;
extern const ByteRows BYTE_ROWS_v4;
#endif

const ByteRows& byte_rows() {
#ifdef TIGHTBEAM_X86_64
  const InstructionSet best = best_instruction_set();
  if (best >= InstructionSet::v4) return BYTE_ROWS_v4;
  if (best >= InstructionSet::v3) return BYTE_ROWS_v3;
#endif
  return BYTE_ROWS_baseline;
}

}  // namespace tightbeam
