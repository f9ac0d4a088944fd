// The tables of inner loops for this machine's instruction set. Each table is defined once for each set, in the file
// *_kernels.cpp beside its header, but for that of AMX, which is VNNI's with two other functions.
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

#ifdef TIGHTBEAM_AMX
void pack_v4_amx(const signed char* integers, long width, int rows, long groups, void* packed);
void multiply_v4_amx(const Multiplication& multiplication);

static Quantized with_amx() {
  Quantized kernels = QUANTIZED_v4_vnni;
  kernels.name = "v4_amx";
  kernels.rows_of_one = kernels.rows_of_two = AMX_ROWS;
  kernels.groups_at_once = AMX_GROUPS;
  kernels.pack = pack_v4_amx;
  kernels.multiply = multiply_v4_amx;
  return kernels;
}
#endif

const Quantized& quantized() {
  switch (best_instruction_set()) {
#ifdef TIGHTBEAM_X86_64
    case InstructionSet::v4_amx:
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

const Quantized& quantized_matrices(long rows, long groups) {
#ifdef TIGHTBEAM_AMX
  constexpr long FEWEST_ROWS = 16;  // fewer take as long by AMX as by VNNI
  static const Quantized amx = with_amx();
  if (best_instruction_set() == InstructionSet::v4_amx && rows >= FEWEST_ROWS && groups % AMX_GROUPS == 0) return amx;
#else
  static_cast<void>(rows);
  static_cast<void>(groups);
#endif
  return quantized();
}

}  // namespace tightbeam
