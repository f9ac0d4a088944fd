// A kernel of float32 alone, for a node of float16 or bfloat16: its tensors are widened before and rounded to
// the nearest after. Caches too, whole, so on the CPU a model of 16 bits is served, but float32 is the faster one.
#pragma once

#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/operator.h"

namespace tightbeam {

// Runs `run` on `call` as if its operator's float type were float32. `narrow`: what it is, float16 or bfloat16.
void run_widened(Call& call, Type narrow, const Parallel& parallel, void (*run)(const Call&, const Parallel&));

}  // namespace tightbeam
