// NGramBlock on the CPU.
#pragma once

#include "kernels/cpu/parallel.h"
#include "ops/ngram_block/arguments.h"

namespace tightbeam {

// Raises OperatorError for a length beyond the history and for a token outside the vocabulary.
template <class Float>
void ngram_block(const NGramBlockArguments<Float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
