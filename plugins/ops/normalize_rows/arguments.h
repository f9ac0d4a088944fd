// Arguments of NormalizeRows's kernels, and how a call fills them.
#pragma once

#include "kernels/operator.h"

namespace tightbeam {

template <class Float>
struct NormalizeRowsArguments {
  int R, X;
  float epsilon;
  bool centred;

  const Float* rows;    // [R, X]
  const float* weight;  // [X]
  const float* bias;    // [X]
  Float* normalized;    // [R, X]
};

class Parallel;

template <class Float>
NormalizeRowsArguments<Float> normalize_rows_arguments(const Call& call) {
  const int centred = call.int_attribute("centred");
  if (centred != 0 && centred != 1) call.fail("attribute centred is " + std::to_string(centred) + ", expected 0 or 1");
  return {call.size("R"),
          call.size("X"),
          call.float_attribute("epsilon"),
          centred == 1,
          call.input<Float>("rows"),
          call.input<float>("weight"),
          call.input<float>("bias"),
          call.output<Float>("normalized")};
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it.
void normalize_rows(const NormalizeRowsArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
