// Arguments of TiledGather's kernels, and how a call fills them.
#pragma once

#include "kernels/cpu/quantized.h"
#include "kernels/operator.h"

namespace tightbeam {

template <class Float>
struct TiledGatherArguments {
  int R, X, tiles;

  const long long* tokens;  // [R]
  const float* weights;     // [tiles, X, 16]
  float* embeddings;        // [R, X]
};

class Parallel;

template <class Float>
TiledGatherArguments<Float> tiled_gather_arguments(const Call& call) {
  return {call.size("R"),
          call.size("X"),
          call.size("tiles"),
          call.input<long long>("tokens"),
          call.input<float>("weights"),
          call.output<float>("embeddings")};
}

// The CPU kernel (kernel_cpu.cpp). Raises OperatorError for a token beyond the last tile.
void tiled_gather(const TiledGatherArguments<float>& arguments, const Parallel& parallel);

}  // namespace tightbeam
