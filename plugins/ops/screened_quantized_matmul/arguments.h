// Arguments of ScreenedQuantizedMatMul's kernel, and how a call fills them. Letters: docs/design.md.
#pragma once

#include "ops/dynamic_quantize_matmul/arguments.h"
#include "ops/linear/arguments.h"
#include "ops/screened_linear/search.h"

namespace tightbeam {

template <class Float>
struct ScreenedQuantizedMatMulArguments {
  DynamicQuantizeMatMulArguments<float> product;  // the whole product, into the logits
  int screens;                                    // tiles of directions
  const float* directions;                        // [screens, 4 groups, 16]
  const unsigned char* integers;                  // [tiles, 4 screens, 16, 4]
  const float* integer_scale;                     // [vocabulary]
  const float* error;                             // [4, tiles]
  ScreenedSearch search;
};

class Parallel;

template <class Float>
ScreenedQuantizedMatMulArguments<Float> screened_quantized_matmul_arguments(const Call& call) {
  ScreenedQuantizedMatMulArguments<Float> arguments{};
  arguments.product = logits_arguments(call);
  arguments.screens = call.size("screens");
  if (arguments.screens > MAX_GROUPS / GROUP)
    call.fail("directions has " + std::to_string(arguments.screens) + " tiles, expected at most " +
              std::to_string(MAX_GROUPS / GROUP));
  arguments.directions = call.input<float>("directions");
  arguments.integers = call.input<unsigned char>("integers");
  arguments.integer_scale = call.input<float>("integer_scale");
  arguments.error = call.input<float>("error");
  arguments.search = screened_search(call);
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). It leaves the checks of values to BeamTopK.
void screened_quantized_matmul(const ScreenedQuantizedMatMulArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
