// Arguments of QuantizedGather's kernels, and how a call fills them.
#pragma once

#include "kernels/cpu/tiled_arguments.h"

namespace tightbeam {

template <class Float>
struct QuantizedGatherArguments {
  int R;
  int vocabulary;
  int groups;  // of four numbers of a row
  int blocks;  // of a row, each with a scale of its own

  const long long* tokens;       // [R]
  const unsigned char* weights;  // [tiles, groups, 16, 4]
  const float* scale;            // [blocks, vocabulary]
  float* embeddings;             // [R, 4 groups]
};

class Parallel;

template <class Float>
QuantizedGatherArguments<Float> quantized_gather_arguments(const Call& call) {
  QuantizedGatherArguments<Float> arguments{};
  arguments.R = call.size("R");
  arguments.vocabulary = call.size("vocabulary");
  arguments.groups = call.size("groups");
  arguments.blocks = call.size("blocks");
  check_tiles(call, "vocabulary");
  if (arguments.groups % arguments.blocks != 0)
    call.fail("scale has " + std::to_string(arguments.blocks) + " blocks, expected a divisor of " +
              std::to_string(arguments.groups) + ", the groups of four numbers in a row");
  arguments.tokens = call.input<long long>("tokens");
  arguments.weights = call.input<unsigned char>("weights");
  arguments.scale = call.input<float>("scale");
  arguments.embeddings = call.output<float>("embeddings");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Raises OperatorError for a token outside the vocabulary.
void quantized_gather(const QuantizedGatherArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
