// The instruction sets that kernels are compiled for (cmake/InstructionSets.cmake), and the best one of this machine.
#pragma once

namespace tightbeam {

// In order: each has what those before it have, but for v4, which lacks AVX-VNNI. `v3`: AVX2 with FMA; `v4`: AVX-512 F,
// BW, DQ and VL; `_vnni`: with dot products of bytes.
enum class InstructionSet { baseline, v3, v3_vnni, v4, v4_vnni };

// The environment variable TIGHTBEAM_ISA names the highest one to be used, for tests.
InstructionSet best_instruction_set();

}  // namespace tightbeam
