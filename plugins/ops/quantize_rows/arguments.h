// Arguments of QuantizeRows's kernels, and how a call fills them.
#pragma once

#include "kernels/operator.h"

namespace tightbeam {

template <class Float>
struct QuantizeRowsArguments {
  int R, X;
  int digits = 1;  // 2: a number is 128 times its high digit plus its low one, in 127 x 128 steps to the largest
  int beside = 1;  // rows whose digits are side by side: the low digits of these rows follow their high ones

  const Float* rows;       // [R, X]
  signed char* quantized;  // [R / beside, digits, beside, X]
  float* scale;            // [R, 1]
};

class Parallel;

template <class Float>
QuantizeRowsArguments<Float> quantize_rows_arguments(const Call& call) {
  QuantizeRowsArguments<Float> arguments{};
  arguments.R = call.size("R");
  arguments.X = call.size("X");
  arguments.rows = call.input<Float>("rows");
  arguments.quantized = call.output<signed char>("quantized");
  arguments.scale = call.output<float>("scale");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it.
void quantize_rows(const QuantizeRowsArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
