// LatentAttention on the CPU.
#pragma once

#include "kernels/cpu/parallel.h"
#include "ops/latent_attention/arguments.h"

namespace tightbeam {

void latent_attention(const LatentAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
