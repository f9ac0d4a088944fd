// The tables of inner loops for this machine's instruction set. Each table is defined once for each set, in the file
// *_kernels.cpp beside its header.
#include "kernels/cpu/attention/encoder_attention.h"
#include "kernels/cpu/attention/history_bytes.h"
#include "kernels/cpu/byte_rows.h"
#include "kernels/cpu/instruction_sets.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/quantized.h"

namespace tightbeam {

#ifdef TIGHTBEAM_X86_64
#define TIGHTBEAM_DISPATCH(Table, NAME, function)                    \
  extern const Table NAME##_baseline, NAME##_v3, NAME##_v4;          \
  const Table& function() {                                          \
    const InstructionSet best = best_instruction_set();              \
    if (best >= InstructionSet::v4) return NAME##_v4;                \
    return best >= InstructionSet::v3 ? NAME##_v3 : NAME##_baseline; \
  }
#else
#define TIGHTBEAM_DISPATCH(Table, NAME, function) \
  extern const Table NAME##_baseline;             \
  const Table& function() { return NAME##_baseline; }
#endif
TIGHTBEAM_DISPATCH(ByteRows, BYTE_ROWS, byte_rows)
TIGHTBEAM_DISPATCH(EncoderAttentionKernels, ENCODER_ATTENTION, encoder_attention_kernels)
TIGHTBEAM_DISPATCH(HistoryBytes, HISTORY_BYTES, history_bytes)
TIGHTBEAM_DISPATCH(LinearKernels, LINEAR, linear_kernels)
TIGHTBEAM_DISPATCH(Math, MATH, math)

extern const Quantized QUANTIZED_baseline;
#ifdef TIGHTBEAM_X86_64
extern const Quantized QUANTIZED_v3, QUANTIZED_v3_vnni, QUANTIZED_v4, QUANTIZED_v4_vnni;
#elif defined(TIGHTBEAM_AARCH64)
extern const Quantized QUANTIZED_dotprod, QUANTIZED_i8mm;
#endif

const Quantized& quantized() {
  switch (best_instruction_set()) {
#ifdef TIGHTBEAM_X86_64
    case InstructionSet::v4_vnni: return QUANTIZED_v4_vnni;
    case InstructionSet::v4: return QUANTIZED_v4;
    case InstructionSet::v3_vnni: return QUANTIZED_v3_vnni;
    case InstructionSet::v3: return QUANTIZED_v3;
#elif defined(TIGHTBEAM_AARCH64)
    case InstructionSet::i8mm: return QUANTIZED_i8mm;
    case InstructionSet::dotprod: return QUANTIZED_dotprod;
#endif
    default: return QUANTIZED_baseline;
  }
}

}  // namespace tightbeam
