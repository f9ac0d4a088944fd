// BeamAttention on the CPU.
#pragma once

#include "ops/beam_attention/arguments.h"
#include "kernels/cpu/parallel.h"

namespace tightbeam {

// Raises OperatorError, before anything is written, for values that point outside the cache or the tables.
void beam_attention(const BeamAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
