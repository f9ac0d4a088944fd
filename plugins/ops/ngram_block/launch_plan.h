// Launch plan of NGramBlock's kernel: a block has a slice of a row's scores.
#pragma once

#include "kernels/cuda/launch.h"
#include "ops/ngram_block/arguments.h"

namespace tightbeam {

namespace device {
template <class Float>
__global__ void ngram_block(NGramBlockArguments<Float> a);
}

template <class Float>
Launch plan_ngram_block(const NGramBlockArguments<Float>& arguments) {
  constexpr int THREADS = 256, MAX_SLICES = 64;
  constexpr int NUMBERS = 16 * THREADS * 4 / sizeof(Float);  // of a slice: four loads of each thread
  // In place there is nothing to copy, so one block is enough for a row.
  const bool in_place = arguments.scores == arguments.blocked;
  int slices = in_place ? 1 : (arguments.vocabulary + NUMBERS - 1) / NUMBERS;
  if (slices > MAX_SLICES) slices = MAX_SLICES;
  return {{arguments.R, slices, 1}, THREADS, 0};
}

template <class Float>
unsigned long long ngram_block_workspace(const NGramBlockArguments<Float>&, const Gpu&) {
  return 0;
}
template <class Float>
unsigned long long ngram_block_most_workspace(const NGramBlockArguments<Float>&, const Gpu&) {
  return 0;
}

template <class Float, class Launcher>
void launch_ngram_block(const NGramBlockArguments<Float>& a, const Gpu&, void*, const Launcher& launcher) {
  launcher(Kernel<device::ngram_block<Float>>(), plan_ngram_block(a), a);
}

}  // namespace tightbeam
