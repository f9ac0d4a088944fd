// Arguments of HeadMatMul's kernels, and how a call fills them.
#pragma once

#include "ops/quantized_matmul/arguments.h"

namespace tightbeam {

template <class Float>
struct HeadMatMulArguments {
  int R, H;
  int Y;           // columns of a head
  int tiles;       // of 16 columns of a head
  int groups;      // of four numbers of a row
  int blocks;      // of a row, each with a scale of its own
  int digits = 1;  // integers that a number of a row is split into

  const Float* rows;             // [R, H, 4 groups]
  const unsigned char* weights;  // [H, tiles, groups, 16, 4]
  const float* scale;            // [H, blocks, Y]
  Float* products;               // [R, H, Y]
};

class Parallel;

template <class Float>
HeadMatMulArguments<Float> head_matmul_arguments(const Call& call) {
  HeadMatMulArguments<Float> arguments{};
  arguments.R = call.size("R");
  arguments.H = call.size("H");
  arguments.Y = call.size("Y");
  arguments.tiles = call.size("tiles");
  arguments.groups = call.size("groups");
  arguments.blocks = call.size("blocks");
  check_quantized_matrix(call);
  arguments.rows = call.input<Float>("rows");
  arguments.weights = call.input<unsigned char>("weights");
  arguments.scale = call.input<float>("scale");
  arguments.products = call.output<Float>("products");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it.
void head_matmul(const HeadMatMulArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
