// BeamTopK on the CPU.
#pragma once

#include "ops/beam_top_k/arguments.h"
#include "kernels/cpu/parallel.h"

namespace tightbeam {

// Raises OperatorError for logits or beam scores that no candidate can be chosen by (NaN, +inf, a row of -inf), for
// tokens outside the vocabulary and for lengths beyond the history.
void beam_top_k(const BeamTopKArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
