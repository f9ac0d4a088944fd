#include "kernels/cpu/math.h"

#include <cstdlib>
#include <cstring>

namespace tightbeam {

extern const Math MATH_baseline;
#ifdef TIGHTBEAM_X86_64
extern const Math MATH_v3;
extern const Math MATH_v4;
#endif

namespace {

const Math& best() {
#ifdef TIGHTBEAM_X86_64
  __builtin_cpu_init();
  const char* most = std::getenv("TIGHTBEAM_ISA");  // for tests: baseline or v3 on a machine that has more
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (most != nullptr && std::strcmp(most, "baseline") == 0) return MATH_baseline;
  if (v4 && (most == nullptr || std::strcmp(most, "v3") != 0)) return MATH_v4;
  if (v3) return MATH_v3;
#endif
  return MATH_baseline;
}

}  // namespace

const Math& math() {
  static const Math& chosen = best();
  return chosen;
}

}  // namespace tightbeam
