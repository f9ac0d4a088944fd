// Arguments of Linear's kernels, and how a call fills them.
#pragma once

#include "kernels/cpu/tiled_arguments.h"

namespace tightbeam {

template <class Float>
struct LinearArguments {
  int R, X, Y;

  const float* rows;     // [R, X]
  const float* weights;  // [tiles, X, 16]
  const float* bias;     // [Y]
  const float* addend;   // [R, Y], or null
  float addend_of_all;   // in its place if it is null
  float* products;       // [R, Y]
};

class Parallel;

template <class Float>
LinearArguments<Float> linear_arguments(const Call& call) {
  LinearArguments<Float> arguments{};
  arguments.R = call.size("R");
  arguments.X = call.size("X");
  arguments.Y = call.size("Y");
  check_tiles(call, "Y");
  arguments.rows = call.input<float>("rows");
  arguments.weights = call.input<float>("weights");
  arguments.bias = call.input<float>("bias");
  set_addend<float>(call, arguments);
  arguments.products = call.output<float>("products");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp).
void linear(const LinearArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
