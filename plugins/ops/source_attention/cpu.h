// SourceAttention on the CPU.
#pragma once

#include "kernels/cpu/parallel.h"
#include "ops/source_attention/arguments.h"

namespace tightbeam {

void source_attention(const SourceAttentionArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
