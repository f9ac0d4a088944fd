#include "onnxruntime/loop_cache.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "onnxruntime/adapter.h"

namespace tightbeam {
namespace {

struct LoopCacheNode {
  const LoopCache& op;
  const OrtApi& api;
};

const LoopCache& loop_cache(const OrtCustomOp* op) { return *static_cast<const LoopCache*>(op); }

struct Memory {
  std::vector<int64_t> shape;
  void* data = nullptr;

  size_t count() const {
    size_t product = 1;
    for (const int64_t size : shape) product *= static_cast<size_t>(size);
    return product;
  }
};

Memory input_memory(const OrtApi& api, const OrtKernelContext* context, size_t index) {
  Memory memory;
  const OrtValue* value = nullptr;
  check(api.KernelContext_GetInput(context, index, &value));
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api.GetTensorTypeAndShape(value, &info));
  size_t rank = 0;
  OrtStatus* status = api.GetDimensionsCount(info, &rank);
  memory.shape.resize(rank);
  if (status == nullptr) status = api.GetDimensions(info, memory.shape.data(), rank);
  api.ReleaseTensorTypeAndShapeInfo(info);
  check(status);
  check(api.GetTensorMutableData(const_cast<OrtValue*>(value), &memory.data));  // NOLINT: the API has no const form
  return memory;
}

void run_loop_cache(const LoopCacheNode& node, OrtKernelContext* context) {
  const Memory store = input_memory(node.api, context, 0);
  std::vector<int64_t> shape = store.shape;
  if (node.op.keeps && !shape.empty()) shape[0] = 0;
  OrtValue* value = nullptr;
  check(node.api.KernelContext_GetOutput(context, 0, shape.data(), shape.size(), &value));
  const Memory source = node.op.keeps ? input_memory(node.api, context, 1) : store;
  void* target = store.data;
  if (!node.op.keeps) check(node.api.GetTensorMutableData(value, &target));
  // The runtime gives all three one memory. Should one not, its numbers are copied.
  if (target != source.data) std::memcpy(target, source.data, std::min(source.count(), store.count()) * node.op.item);
}

std::unique_ptr<LoopCache> make(ONNXTensorElementDataType type, size_t item, bool keeps) {
  auto op = std::make_unique<LoopCache>();
  op->version = ORT_API;
  op->type = type;
  op->item = item;
  op->keeps = keeps;
  op->GetName = [](const OrtCustomOp* op) { return loop_cache(op).keeps ? "KeptCache" : "InPlaceCache"; };
  op->GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op->GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 2; };
  op->GetInputType = [](const OrtCustomOp* op, size_t) { return loop_cache(op).type; };
  op->GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  op->GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op->GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  op->GetOutputType = [](const OrtCustomOp* op, size_t) { return loop_cache(op).type; };
  op->GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_REQUIRED; };
  op->GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op->GetEndVersion = [](const OrtCustomOp*) { return 1; };
  op->CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo*, void** node) {
    *node = new LoopCacheNode{loop_cache(op), *api};
    return static_cast<OrtStatus*>(nullptr);
  };
  op->KernelComputeV2 = [](void* pointer, OrtKernelContext* context) -> OrtStatus* {
    const LoopCacheNode& node = *static_cast<LoopCacheNode*>(pointer);
    try {
      run_loop_cache(node, context);
    } catch (const ApiError& error) {
      return error.status;
    } catch (const std::exception& error) {
      return node.api.CreateStatus(ORT_FAIL, error.what());
    }
    return nullptr;
  };
  op->KernelDestroy = [](void* node) { delete static_cast<LoopCacheNode*>(node); };
  if (!keeps) {
    op->GetAliasMap = [](int** inputs, int** outputs) -> size_t {
      *inputs = new int[1]{0};
      *outputs = new int[1]{0};
      return 1;
    };
    op->ReleaseAliasMap = [](int* inputs, int* outputs) {
      delete[] inputs;
      delete[] outputs;
    };
  }
  return op;
}

}  // namespace

void add_loop_cache_operators(LoopCacheOperators& operators) {
  for (const bool keeps : {false, true}) {
    operators.push_back(make(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4, keeps));
    operators.push_back(make(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2, keeps));
    operators.push_back(make(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1, keeps));
  }
}

}  // namespace tightbeam
