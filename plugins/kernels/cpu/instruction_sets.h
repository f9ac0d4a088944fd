// The instruction sets for which kernels are compiled (cmake/InstructionSets.cmake), and the best one of this machine.
#pragma once

namespace tightbeam {

// Those of x86-64, then those of arm64. Each has the instructions of those before it, except that v4 lacks AVX-VNNI.
// `v3` is AVX2 with FMA; `v4` is AVX-512 F, BW, DQ and VL; `_vnni` and `dotprod` add dot products of bytes; `_amx` and
// `i8mm` add products of matrices of bytes.
enum class InstructionSet { baseline, v3, v3_vnni, v4, v4_vnni, v4_amx, dotprod, i8mm };

// The environment variable TIGHTBEAM_ISA names the highest one to use, for tests.
InstructionSet best_instruction_set();

}  // namespace tightbeam
