// BeamLatentAttention on the CPU.
#pragma once

#include "ops/beam_latent_attention/arguments.h"
#include "kernels/cpu/parallel.h"

namespace tightbeam {

// Raises OperatorError, before anything is written, for values that point outside the cache or the tables.
void beam_latent_attention(const BeamLatentAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
