// The two operators of a loop's caches, which the one graph of a bundle has (export/one_graph/).
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <vector>

namespace tightbeam {

struct LoopCache : OrtCustomOp {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  size_t item = 0;  // bytes of an element
  bool keeps = false;
};

// OrtCustomOp has no virtual destructor, so its owner has to name the whole type.
using LoopCacheOperators = std::vector<std::unique_ptr<LoopCache>>;

// InPlaceCache(store, carried) -> cache: the memory of `store`, which lies outside the loop.
// KeptCache(store, cache) -> carried: nothing, [0, ...], since the cache stays where it is.
//
// As functions they are InPlaceCache = carried and KeptCache = cache: without this library the loop carries the cache
// from step to step, and every step copies it.
void add_loop_cache_operators(LoopCacheOperators& operators);

}  // namespace tightbeam
