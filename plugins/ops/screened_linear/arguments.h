// Arguments of ScreenedLinear's kernel, and how a call fills them. Letters: docs/design.md.
#pragma once

#include "ops/dynamic_quantize_matmul/arguments.h"
#include "ops/linear/arguments.h"
#include "ops/screened_linear/search.h"

namespace tightbeam {

template <class Float>
struct ScreenedLinearArguments {
  LinearArguments<float> product;                  // the whole product, into the logits
  DynamicQuantizeMatMulArguments<float> estimate;  // the estimates, into the same memory
  const float* error;                              // [vocabulary]
  ScreenedSearch search;
};

class Parallel;

constexpr int SCREENED = 64;  // columns that are compared side by side, more than MOST_SCREENED

template <class Float>
ScreenedLinearArguments<Float> screened_linear_arguments(const Call& call) {
  ScreenedLinearArguments<Float> arguments{};
  const int vocabulary = call.size("vocabulary"), groups = call.size("groups");
  check_tiles(call, "vocabulary");
  check_groups(call);
  auto& product = arguments.product;
  product.R = call.size("B") * call.size("M");
  product.X = GROUP * groups;
  product.Y = vocabulary;
  product.rows = call.input<float>("rows");
  product.weights = call.input<float>("weights");
  product.bias = call.input<float>("bias");
  product.products = call.output<float>("logits");
  arguments.estimate.rows = product.rows;
  auto& estimate = arguments.estimate.product;
  estimate.R = product.R;
  estimate.Y = vocabulary;
  estimate.groups = groups;
  estimate.blocks = 1;
  estimate.digits = 2;
  estimate.row_step = product.X;
  estimate.row_scale_step = 1;
  estimate.products_step = vocabulary;
  estimate.weights = call.input<unsigned char>("integers");
  estimate.scale = call.input<float>("scale");
  estimate.bias = product.bias;
  estimate.products = product.products;
  arguments.error = call.input<float>("error");
  arguments.search = screened_search(call);
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). It leaves the checks of values to BeamTopK.
void screened_linear(const ScreenedLinearArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
