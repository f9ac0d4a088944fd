// Arguments of Int4Gather's kernels, and how a call fills them.
#pragma once

#include "kernels/cpu/tiled_arguments.h"

namespace tightbeam {

template <class Float>
struct Int4GatherArguments {
  int R;
  int vocabulary;
  int blocks;  // of 32 numbers of a row, each with a scale of its own

  const long long* tokens;           // [R]
  const unsigned char* weights;      // [tiles, 4 blocks, 16, 4]
  const unsigned char* block_scale;  // [tiles, blocks, 16]
  const float* scale;                // [vocabulary]
  float* embeddings;                 // [R, 32 blocks]
};

class Parallel;

template <class Float>
Int4GatherArguments<Float> int4_gather_arguments(const Call& call) {
  Int4GatherArguments<Float> arguments{};
  arguments.R = call.size("R");
  arguments.vocabulary = call.size("vocabulary");
  arguments.blocks = call.size("blocks");
  check_tiles(call, "vocabulary");
  arguments.tokens = call.input<long long>("tokens");
  arguments.weights = call.input<unsigned char>("weights");
  arguments.block_scale = call.input<unsigned char>("block_scale");
  arguments.scale = call.input<float>("scale");
  arguments.embeddings = call.output<float>("embeddings");
  return arguments;
}

// The CPU kernel (kernel_cpu.cpp). Raises OperatorError for a token outside the vocabulary.
void int4_gather(const Int4GatherArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
