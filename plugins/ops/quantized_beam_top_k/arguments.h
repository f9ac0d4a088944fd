// Arguments of QuantizedBeamTopK's kernel, and how a call fills them. Letters: docs/design.md.
#pragma once

#include "ops/beam_top_k/arguments.h"
#include "ops/dynamic_quantize_matmul/arguments.h"

namespace tightbeam {

template <class Float>
struct QuantizedBeamTopKArguments {
  DynamicQuantizeMatMulArguments<float> product;  // into the logits
  BeamTopKArguments<float> search;                // of the logits
  bool all_logits;
};

class Parallel;

template <class Float>
QuantizedBeamTopKArguments<Float> quantized_beam_top_k_arguments(const Call& call) {
  QuantizedBeamTopKArguments<Float> arguments{};
  arguments.product = logits_arguments(call);
  arguments.search = search_arguments<float>(call);
  arguments.search.logits = arguments.product.product.products;
  arguments.all_logits = call.scalar<bool>("all_logits");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Raises what BeamTopK's kernel raises.
void quantized_beam_top_k(const QuantizedBeamTopKArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
