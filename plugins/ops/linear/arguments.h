// Arguments of the kernels of Linear, and how they are filled from a call.
#pragma once

#include "kernels/cpu/quantized.h"
#include "kernels/operator.h"

namespace tightbeam {

template <class Float>
struct LinearArguments {
  int R, X, Y;

  const float* rows;     // [R, X]
  const float* weights;  // [tiles, X, 16]
  const float* bias;     // [Y]
  const float* addend;   // [R, Y], or null
  float addend_of_all;   // where it is null
  float* products;       // [R, Y]
};

class Parallel;

template <class Float>
LinearArguments<Float> linear_arguments(const Call& call) {
  LinearArguments<Float> arguments{};
  arguments.R = call.size("R");
  arguments.X = call.size("X");
  arguments.Y = call.size("Y");
  const int tiles = call.size("tiles"), expected = (arguments.Y - 1) / TILE_COLUMNS + 1;
  if (tiles != expected)
    call.fail("weights has " + std::to_string(tiles) + " tiles, expected " + std::to_string(expected) +
              " of 16 columns for Y = " + std::to_string(arguments.Y));
  const int rows = call.size("addend_rows"), columns = call.size("addend_columns");
  const bool whole = rows == arguments.R && columns == arguments.Y;
  if (!whole && (rows != 1 || columns != 1))
    call.fail("addend is [" + std::to_string(rows) + ", " + std::to_string(columns) + "], expected [1, 1] or [" +
              std::to_string(arguments.R) + ", " + std::to_string(arguments.Y) + "]");
  arguments.rows = call.input<float>("rows");
  arguments.weights = call.input<float>("weights");
  arguments.bias = call.input<float>("bias");
  const float* addend = call.input<float>("addend");
  if (whole)
    arguments.addend = addend;
  else
    arguments.addend_of_all = *addend;
  arguments.products = call.output<float>("products");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp).
void linear(const LinearArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
