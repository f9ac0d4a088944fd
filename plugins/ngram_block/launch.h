// How NGramBlock's kernel is started: blocks of the grid share out the slices of each row's scores.
#pragma once

#include "common/launch.h"
#include "ngram_block/arguments.h"

namespace tightbeam {

template <class Float>
Launch plan_ngram_block(const NGramBlockArguments<Float>& arguments) {
  constexpr int THREADS = 256, MAX_SLICES = 64;
  constexpr int NUMBERS = 16 * THREADS * 4 / sizeof(Float);  // of a slice: four loads a thread
  // In place there is nothing to copy, so one block a row is enough.
  const bool in_place = arguments.scores == arguments.blocked;
  int slices = in_place ? 1 : (arguments.vocabulary + NUMBERS - 1) / NUMBERS;
  if (slices > MAX_SLICES) slices = MAX_SLICES;
  return {{arguments.R, slices, 1}, THREADS, 0};
}

}  // namespace tightbeam
