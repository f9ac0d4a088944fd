#include "kernels/cpu/attention/encoder_attention.h"

#include "kernels/cpu/instruction_sets.h"

namespace tightbeam {

extern const EncoderAttentionKernels ENCODER_ATTENTION_baseline;
#ifdef TIGHTBEAM_X86_64
extern const EncoderAttentionKernels ENCODER_ATTENTION_v3;
extern const EncoderAttentionKernels ENCODER_ATTENTION_v4;
#endif

const EncoderAttentionKernels& encoder_attention_kernels() {
#ifdef TIGHTBEAM_X86_64
  const InstructionSet best = best_instruction_set();
  if (best >= InstructionSet::v4) return ENCODER_ATTENTION_v4;
  if (best >= InstructionSet::v3) return ENCODER_ATTENTION_v3;
#endif
  return ENCODER_ATTENTION_baseline;
}

}  // namespace tightbeam
