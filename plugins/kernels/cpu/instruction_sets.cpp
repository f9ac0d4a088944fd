#include "kernels/cpu/instruction_sets.h"

#include <cstdlib>
#include <cstring>
#ifdef TIGHTBEAM_X86_64
#include <cpuid.h>
#endif

namespace tightbeam {
namespace {

#ifdef TIGHTBEAM_X86_64
bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}

bool has(InstructionSet set) {
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  switch (set) {
    case InstructionSet::baseline: return true;
    case InstructionSet::v3: return v3;
    case InstructionSet::v3_vnni: return v3 && has_avx_vnni();
    case InstructionSet::v4: return v4;
    case InstructionSet::v4_vnni: return v4 && __builtin_cpu_supports("avx512vnni");
  }
  return false;
}
#endif

InstructionSet find_best() {
#ifdef TIGHTBEAM_X86_64
  constexpr struct {
    const char* name;
    InstructionSet set;
  } SETS[] = {{"v4_vnni", InstructionSet::v4_vnni},
              {"v4", InstructionSet::v4},
              {"v3_vnni", InstructionSet::v3_vnni},
              {"v3", InstructionSet::v3},
              {"baseline", InstructionSet::baseline}};
  __builtin_cpu_init();
  const char* most = std::getenv("TIGHTBEAM_ISA");
  bool known = false;
  for (const auto& entry : SETS) known = known || (most != nullptr && std::strcmp(most, entry.name) == 0);
  bool allowed = !known;
  for (const auto& entry : SETS) {
    allowed = allowed || std::strcmp(most, entry.name) == 0;
    if (allowed && has(entry.set)) return entry.set;
  }
#endif
  return InstructionSet::baseline;
}

}  // namespace

InstructionSet best_instruction_set() {
  static const InstructionSet best = find_best();
  return best;
}

}  // namespace tightbeam
