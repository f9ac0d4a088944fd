// The 16-bit float types of the CPU kernels, as bits in memory. CUDA sources use __half and __nv_bfloat16.
#pragma once

#include <cstdint>

namespace tightbeam {

struct Float16 {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

}  // namespace tightbeam
