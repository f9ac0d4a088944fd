// A kernel that has only a float32 version, for a node of float16 or bfloat16: its tensors are widened before, and
// rounded to the nearest after. That includes whole caches. So the CPU can run a model of 16 bits, but float32 is
// faster.
#pragma once

#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/operator.h"

namespace tightbeam {

// Calls `run` on `call` as if its float type were float32. `narrow` is its type, float16 or bfloat16.
void run_widened(Call& call, Type narrow, const Parallel& parallel, void (*run)(const Call&, const Parallel&));

}  // namespace tightbeam
