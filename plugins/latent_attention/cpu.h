// LatentAttention on the CPU.
#pragma once

#include "common/parallel.h"
#include "latent_attention/arguments.h"

namespace tightbeam {

void latent_attention(const LatentAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
