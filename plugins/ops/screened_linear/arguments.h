// Arguments of ScreenedLinear's kernel, and how a call fills them. Letters: docs/design.md.
#pragma once

#include <algorithm>
#include <climits>

#include "ops/dynamic_quantize_matmul/arguments.h"
#include "ops/linear/arguments.h"

namespace tightbeam {

template <class Float>
struct ScreenedLinearArguments {
  LinearArguments<float> product;                  // the whole product, into the logits
  DynamicQuantizeMatMulArguments<float> estimate;  // the estimates, into the same memory
  const float* error;                              // [vocabulary]
  int M, T, P;
  long C;
  int ngram_size;            // 0 blocks nothing
  bool whole;                // every logit is computed
  bool penalised;            // scores of tokens of the history are lowered
  const long long* history;  // [R, T], left-aligned
  const int* lengths;        // [B]
  const long long* banned;   // [R, P]; -1 fills unused places
};

class Parallel;

constexpr long MOST_SCREENED = 16;  // candidates: each is found in another one of SCREENED columns
constexpr int SCREENED = 64;        // columns that are compared side by side

template <class Float>
ScreenedLinearArguments<Float> screened_linear_arguments(const Call& call) {
  ScreenedLinearArguments<Float> arguments{};
  const int B = call.size("B"), M = call.size("M"), vocabulary = call.size("vocabulary"), groups = call.size("groups");
  check_tiles(call, "vocabulary");
  if (groups > MAX_GROUPS)
    call.fail("rows has " + std::to_string(4L * groups) + " numbers a row, expected at most " +
              std::to_string(4 * MAX_GROUPS));
  auto& product = arguments.product;
  product.R = B * M;
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
  arguments.M = M;
  arguments.T = call.size("T");
  arguments.P = call.size("P");
  arguments.C = static_cast<long>(call.scalar<int64_t>("candidates"));
  arguments.ngram_size = static_cast<int>(std::min<int64_t>(call.scalar<int64_t>("no_repeat_ngram_size"), INT_MAX));
  arguments.history = call.input<long long>("history");
  arguments.lengths = call.input<int>("lengths");
  arguments.banned = call.input<long long>("banned");
  const float penalty = call.scalar<float>("repetition_penalty");
  const int* nodes = call.input<int>("trie_nodes");
  const bool free = std::all_of(nodes, nodes + product.R, [](int node) { return node == 0; });
  arguments.penalised = penalty > 1;
  arguments.whole = call.scalar<bool>("all_logits") || call.scalar<bool>("normalize") || !(penalty >= 1) || !free ||
                    arguments.C < 1 || arguments.C > MOST_SCREENED || arguments.ngram_size < 0;
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). It leaves the checks of values to BeamTopK.
void screened_linear(const ScreenedLinearArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
