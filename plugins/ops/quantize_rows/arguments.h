// Arguments of QuantizeRows's kernels, and how a call fills them.
#pragma once

#include "kernels/operator.h"

namespace tightbeam {

template <class Float>
struct QuantizeRowsArguments {
  int R, X;

  const Float* rows;       // [R, X]
  signed char* quantized;  // [R, X]
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
