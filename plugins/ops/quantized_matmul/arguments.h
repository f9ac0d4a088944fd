// Arguments of QuantizedMatMul's kernels, and how a call fills them.
#pragma once

#include <functional>

#include "kernels/cpu/tiled_arguments.h"

namespace tightbeam {

template <class Float>
struct QuantizedMatMulArguments {
  int R;
  int Y;       // columns
  int groups;  // of four numbers of a row
  int blocks;  // of a row, each with a scale of its own
  int activation;
  int digits = 1;  // integers that a number of a row is split into, 128 apart in worth; each digit is a row of its own
  // Distance from a row, or a digit, to the next, in numbers: 4 groups, blocks and Y if the rows are contiguous.
  long row_step, row_scale_step, products_step;

  const signed char* rows;           // [R, digits, 4 groups]
  const float* row_scale;            // [R, blocks]
  const unsigned char* weights;      // [tiles, groups, 16, 4]; of 4 bits [tiles, groups / 2, 16, 4]
  const unsigned char* block_scale;  // [tiles, groups / 8, 16] of weights of 4 bits; null: they have 8 bits
  const float* scale;                // [blocks, Y]
  const float* bias;                 // [Y]
  const Float* addend;               // [R, Y], or null
  Float addend_of_all;               // in its place if it is null
  Float* products;                   // [R, Y]
};

class Parallel;

// Checks that the sums of a row fit 32 bits.
inline void check_groups(const Call& call) {
  const int groups = call.size("groups");
  if (groups > MAX_GROUPS)
    call.fail("rows has " + std::to_string(4L * groups) + " numbers a row, expected at most " +
              std::to_string(4 * MAX_GROUPS));
}

// Checks that the tiles of the weights fit the Y columns and the blocks of the scale.
inline void check_quantized_matrix(const Call& call) {
  const int groups = call.size("groups"), blocks = call.size("blocks");
  check_tiles(call, "Y");
  check_groups(call);
  if (groups % blocks != 0)
    call.fail("scale has " + std::to_string(blocks) + " blocks, expected a divisor of " + std::to_string(groups) +
              ", the groups of four numbers in a row");
}

// Fills in what all products of a matrix of integers have. `arguments` has groups and blocks already.
template <class Float>
void set_product(const Call& call, QuantizedMatMulArguments<Float>& arguments) {
  arguments.R = call.size("R");
  arguments.Y = call.size("Y");
  arguments.activation = call.int_attribute("activation");
  arguments.row_step = long{GROUP} * arguments.groups;
  arguments.row_scale_step = arguments.blocks;
  arguments.products_step = arguments.Y;
  check_tiles(call, "Y");
  if (arguments.activation < 0 || arguments.activation > 4)
    call.fail("attribute activation is " + std::to_string(arguments.activation) + ", expected 0 to 4");
  arguments.weights = call.input<unsigned char>("weights");
  arguments.scale = call.input<float>("scale");
  arguments.bias = call.input<float>("bias");
  set_addend<Float>(call, arguments);
  arguments.products = call.output<Float>("products");
}

// Fills in all arguments but the rows and their scales, which the kernel of DynamicQuantizeMatMul makes itself.
template <class Float>
QuantizedMatMulArguments<Float> quantized_matrix_arguments(const Call& call) {
  QuantizedMatMulArguments<Float> arguments{};
  arguments.groups = call.size("groups");
  arguments.blocks = call.size("blocks");
  check_quantized_matrix(call);
  set_product(call, arguments);
  return arguments;
}

template <class Float>
QuantizedMatMulArguments<Float> quantized_matmul_arguments(const Call& call) {
  QuantizedMatMulArguments<Float> arguments = quantized_matrix_arguments<Float>(call);
  arguments.rows = call.input<signed char>("rows");
  arguments.row_scale = call.input<float>("row_scale");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Tensors of 16 bits are widened before it and rounded after it.
void quantized_matmul(const QuantizedMatMulArguments<float>& arguments, const Parallel& parallel);

// Some products of some rows, `step` apart.
struct ProductBlock {
  long row;
  int rows, first, columns;
  const float* products;
  long step;
};
using UseProducts = std::function<void(const ProductBlock&)>;

// The same without an addend [R, Y], but the products go nowhere: `use` is called for each block of `columns` columns,
// a multiple of 16, while their products are in the second cache. Calls may come at the same time, and twice
// (kernels/cpu/parallel.h).
void quantized_matmul_by_blocks(const QuantizedMatMulArguments<float>& arguments, int columns, const UseProducts& use,
                                const Parallel& parallel);

}  // namespace tightbeam
