#include "kernels/cpu/instruction_sets.h"

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "kernels/exported.h"
#ifdef TIGHTBEAM_X86_64
#include <cpuid.h>
#ifdef TIGHTBEAM_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(TIGHTBEAM_AARCH64)
#include <sys/auxv.h>
#endif

namespace tightbeam {
namespace {

// The best set comes first, and the baseline last.
struct Named {
  const char* name;
  InstructionSet set;
};

#ifdef TIGHTBEAM_X86_64
constexpr Named SETS[] = {{"v4_amx", InstructionSet::v4_amx}, {"v4_vnni", InstructionSet::v4_vnni},
                          {"v4", InstructionSet::v4},         {"v3_vnni", InstructionSet::v3_vnni},
                          {"v3", InstructionSet::v3},         {"baseline", InstructionSet::baseline}};

bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}

bool has_amx() {
#ifdef TIGHTBEAM_AMX
  // Linux gives a process the registers of AMX only if it asks for them.
  constexpr unsigned TILE = 1u << 24, INT8 = 1u << 25;
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & TILE) != 0 && (edx & INT8) != 0 &&
         syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
  return false;
#endif
}

bool has(InstructionSet set) {
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool v4_vnni = v4 && __builtin_cpu_supports("avx512vnni");
  switch (set) {
    case InstructionSet::v3: return v3;
    case InstructionSet::v3_vnni: return v3 && has_avx_vnni();
    case InstructionSet::v4: return v4;
    case InstructionSet::v4_vnni: return v4_vnni;
    case InstructionSet::v4_amx: return v4_vnni && has_amx();
    default: return false;
  }
}
#elif defined(TIGHTBEAM_AARCH64)
constexpr Named SETS[] = {
    {"i8mm", InstructionSet::i8mm}, {"dotprod", InstructionSet::dotprod}, {"baseline", InstructionSet::baseline}};

bool has(InstructionSet set) {
  constexpr unsigned long ASIMDDP = 1 << 20, I8MM = 1 << 13;  // Linux's bits of AT_HWCAP and of AT_HWCAP2
  const bool dotprod = (getauxval(AT_HWCAP) & ASIMDDP) != 0;
  switch (set) {
    case InstructionSet::dotprod: return dotprod;
    case InstructionSet::i8mm: return dotprod && (getauxval(AT_HWCAP2) & I8MM) != 0;
    default: return false;
  }
}
#else
constexpr Named SETS[] = {{"baseline", InstructionSet::baseline}};

bool has(InstructionSet) { return false; }
#endif

const Named& find_best() {
  const char* most = std::getenv("TIGHTBEAM_ISA");
  bool known = false;
  for (const auto& entry : SETS) known = known || (most != nullptr && std::strcmp(most, entry.name) == 0);
  bool allowed = !known;
  for (const auto& entry : SETS) {
    allowed = allowed || std::strcmp(most, entry.name) == 0;
    if (allowed && (entry.set == InstructionSet::baseline || has(entry.set))) return entry;
  }
  return *(std::end(SETS) - 1);
}

const Named& best() {
  static const Named& found = find_best();
  return found;
}

}  // namespace

InstructionSet best_instruction_set() { return best().set; }

}  // namespace tightbeam

TIGHTBEAM_EXPORT const char* tightbeam_instruction_set() { return tightbeam::best().name; }
