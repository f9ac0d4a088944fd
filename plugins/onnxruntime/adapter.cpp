#include "onnxruntime/adapter.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include "generated/operators.h"
#include "onnxruntime/loop_cache.h"

namespace tightbeam {
namespace {

// The state of a node between runs.
struct Node {
  const CustomOperator& op;
  const OrtApi& api;
  std::vector<double> attributes;
};

struct ReleaseInfo {
  const OrtApi& api;
  void operator()(OrtTensorTypeAndShapeInfo* info) const { api.ReleaseTensorTypeAndShapeInfo(info); }
};
using Info = std::unique_ptr<OrtTensorTypeAndShapeInfo, ReleaseInfo>;

const CustomOperator& self(const OrtCustomOp* op) { return *static_cast<const CustomOperator*>(op); }

ONNXTensorElementDataType onnx_type(Element element, ONNXTensorElementDataType float_type) {
  switch (element) {
    case Element::float32: return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case Element::int8: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    case Element::uint8: return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    case Element::int32: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case Element::int64: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case Element::boolean: return ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
    case Element::Float: break;
  }
  return float_type;
}

Type tensor_type(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return Type::float16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return Type::bfloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8: return Type::int8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return Type::uint8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return Type::int32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return Type::int64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return Type::boolean;
    default: return Type::float32;
  }
}

// Runs the body of a callback. No exception may reach the runtime, whose interface is C.
template <class Body>
OrtStatus* guarded(const OrtApi& api, const char* op, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const OperatorError& error) {
    return api.CreateStatus(ORT_INVALID_ARGUMENT, error.message.c_str());
  } catch (const ApiError& error) {
    return error.status;
  } catch (const std::bad_alloc&) {
    return api.CreateStatus(ORT_FAIL, (std::string(op) + ": out of memory").c_str());
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, (std::string(op) + ": " + error.what()).c_str());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, (std::string(op) + ": unknown exception").c_str());
  }
}

bool present(const OrtApi& api, const OrtValue* value) {
  int has_value = 0;
  if (value != nullptr) check(api.HasValue(value, &has_value));
  return has_value != 0;
}

std::vector<int64_t> dimensions(const OrtApi& api, const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  check(api.GetDimensionsCount(info, &rank));
  std::vector<int64_t> sizes(rank);
  check(api.GetDimensions(info, sizes.data(), rank));
  return sizes;
}

// ---- a node is made ----

// An attribute as the runtime reports it. It has the types for which the runtime returns no error.
struct FoundAttribute {
  bool is_float, is_int;
  float number;
  int64_t integer;
};

double attribute_value(const char* op, const Attribute& wanted, const FoundAttribute& found) {
  const auto fail = [&](const char* what) -> double {
    throw OperatorError{std::string(op) + ": attribute " + wanted.name + what};
  };
  if (wanted.is_int ? found.is_float : found.is_int)
    return fail(wanted.is_int ? " is a float, expected an int" : " is an int, expected a float");
  if (found.is_float) return found.number;
  if (found.is_int) return static_cast<double>(found.integer);
  return wanted.is_required ? fail(" is missing") : wanted.value;
}

bool succeeded(const OrtApi& api, OrtStatus* status) {
  api.ReleaseStatus(status);
  return status == nullptr;
}

std::vector<double> attribute_values(const OrtApi& api, const OrtKernelInfo* info, const Operator& table) {
  std::vector<double> values;
  for (const Attribute& wanted : table.attributes) {
    FoundAttribute found{};
    found.is_float = succeeded(api, api.KernelInfoGetAttribute_float(info, wanted.name, &found.number));
    found.is_int = succeeded(api, api.KernelInfoGetAttribute_int64(info, wanted.name, &found.integer));
    values.push_back(attribute_value(table.name, wanted, found));
  }
  return values;
}

OrtStatus* ORT_API_CALL create_node(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                                    void** node) noexcept {
  const CustomOperator& custom = self(op);
  return guarded(*api, custom.table.name,
                 [&] { *node = new Node{custom, *api, attribute_values(*api, info, custom.table)}; });
}

// ---- a node is run ----

Tensor input_tensor(const OrtApi& api, const OrtKernelContext* context, size_t index, const Input& input,
                    ONNXTensorElementDataType type) {
  Tensor tensor;
  tensor.name = input.name;
  tensor.type = tensor_type(type);
  const OrtValue* value = nullptr;
  size_t count = 0;
  check(api.KernelContext_GetInputCount(context, &count));
  if (index < count) check(api.KernelContext_GetInput(context, index, &value));
  if (!present(api, value)) return tensor;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api.GetTensorTypeAndShape(value, &info));
  tensor.shape = dimensions(api, Info(info, ReleaseInfo{api}).get());
  void* data = nullptr;
  check(api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));  // NOLINT: the API has no const form
  tensor.data = data;
  tensor.present = true;
  return tensor;
}

OrtStatus* ORT_API_CALL run_node(void* pointer, OrtKernelContext* context) noexcept {
  const Node& node = *static_cast<Node*>(pointer);
  const Operator& table = node.op.table;
  return guarded(node.api, table.name, [&] {
    Call call(table);
    call.attributes = node.attributes;
    std::vector<KnownShape> shapes;
    for (size_t i = 0; i < table.inputs.size(); ++i) {
      const Input& input = table.inputs[i];
      call.inputs.push_back(input_tensor(node.api, context, i, input, onnx_type(input.type, node.op.float_type)));
      const Tensor& tensor = call.inputs.back();
      if (!tensor.present && !input.is_optional) call.fail(std::string(input.name) + " is missing");
      shapes.push_back(
          {tensor.present, tensor.present, tensor.shape, input.letter == nullptr ? nullptr : tensor.as<int64_t>()});
    }
    call.sizes = table.sizes(shapes);
    size_t count = 0;
    check(node.api.KernelContext_GetOutputCount(context, &count));
    for (size_t i = 0; i < table.outputs.size(); ++i) {
      const std::vector<int64_t> shape = table.output_shape(i, call.sizes);
      OrtValue* value = nullptr;
      if (i < count) check(node.api.KernelContext_GetOutput(context, i, shape.data(), shape.size(), &value));
      void* data = nullptr;
      if (value != nullptr) check(node.api.GetTensorMutableData(value, &data));
      if (data == nullptr && !table.outputs[i].is_optional)
        call.fail(std::string(table.outputs[i].name) + " is missing");
      call.outputs.push_back(data);
    }
    node.op.run(call, node.api, context);
  });
}

// ---- a model is loaded ----

const OrtApi* runtime = nullptr;  // of the last registration: shape inference gets no API

struct Symbols {
  KnownShape shape;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<const char*> names;  // empty if a size is known, or has no name
};

Symbols known_shape(const OrtApi& api, const OrtShapeInferContext* context, size_t index) {
  size_t count = 0;
  check(api.ShapeInferContext_GetInputCount(context, &count));
  if (index >= count) return {};
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api.ShapeInferContext_GetInputTypeShape(context, index, &info));  // the context owns it
  Symbols known;
  check(api.GetTensorElementType(info, &known.type));
  if (known.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) return {};  // an optional input that is missing
  known.shape = {true, true, dimensions(api, info), nullptr};
  known.shape.has_rank =
      !known.shape.sizes.empty();  // the API reports an empty shape for scalars and for unknown ranks
  known.names.resize(known.shape.sizes.size(), "");
  if (known.shape.has_rank) check(api.GetSymbolicDimensions(info, known.names.data(), known.names.size()));
  return known;
}

// Sets an output's shape if each dimension has a number or a name. The API has no other unknown dimensions.
void infer_shape(const OrtApi& api, OrtShapeInferContext* context, const CustomOperator& custom, size_t output,
                 const std::vector<Symbols>& inputs, const std::vector<int64_t>& sizes,
                 ONNXTensorElementDataType float_type) {
  const std::vector<int64_t> shape = custom.table.output_shape(output, sizes);
  std::vector<const char*> names(shape.size(), "");
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] >= 0) continue;
    const auto [input, dimension] = custom.table.same_dimension(output, d);
    if (input < 0 || !inputs[input].shape.has_rank || *inputs[input].names[dimension] == '\0') return;
    names[d] = inputs[input].names[dimension];
  }
  OrtTensorTypeAndShapeInfo* made = nullptr;
  check(api.CreateTensorTypeAndShapeInfo(&made));
  const Info info(made, ReleaseInfo{api});
  check(api.SetTensorElementType(made, onnx_type(custom.table.outputs[output].type, float_type)));
  check(api.SetDimensions(made, shape.data(), shape.size()));
  check(api.SetSymbolicDimensions(made, names.data(), names.size()));
  check(api.ShapeInferContext_SetOutputTypeShape(context, output, made));
}

// Errors are reported when the node runs, since the runtime drops (and leaks) a status from here.
OrtStatus* ORT_API_CALL infer_shapes(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const CustomOperator& custom = self(op);
  runtime->ReleaseStatus(guarded(*runtime, custom.table.name, [&] {
    std::vector<Symbols> inputs;
    std::vector<KnownShape> shapes;
    // The runtime calls the first operator of a name, for nodes of every float type.
    ONNXTensorElementDataType float_type = custom.float_type;
    for (size_t i = 0; i < custom.table.inputs.size(); ++i) {
      inputs.push_back(known_shape(*runtime, context, i));
      shapes.push_back(inputs.back().shape);
      if (custom.table.inputs[i].type == Element::Float && inputs.back().shape.present) float_type = inputs.back().type;
    }
    const std::vector<int64_t> sizes = custom.table.sizes(shapes);
    for (size_t i = 0; i < custom.table.outputs.size(); ++i)
      if (!custom.table.outputs[i].is_optional) infer_shape(*runtime, context, custom, i, inputs, sizes, float_type);
  }));
  return nullptr;
}

// Earlier runtimes dereference a null pointer when they infer shapes of a node without an optional input.
constexpr int OPTIONAL_INPUTS_INFERRED = 25;

bool has_optional_input(const Operator& table) {
  return std::any_of(table.inputs.begin(), table.inputs.end(), [](const Input& input) { return input.is_optional; });
}

struct Domain {
  Domain(const OrtApi& api, const char* version, void (*add_all)(Operators&)) : api(api) {
    int major = 0, minor = 0;
    std::sscanf(version, "%d.%d", &major, &minor);
    add_all(operators);
    check(api.CreateCustomOpDomain("tightbeam", &domain));
    for (const auto& op : operators) {
      if (major == 1 && minor < OPTIONAL_INPUTS_INFERRED && has_optional_input(op->table))
        op->InferOutputShapeFn = nullptr;
      check(api.CustomOpDomain_Add(domain, op.get()));
    }
    add_loop_cache_operators(loop_operators);
    check(api.CreateCustomOpDomain("tightbeam.loop", &loop_domain));
    for (const auto& op : loop_operators) check(api.CustomOpDomain_Add(loop_domain, op.get()));
  }
  ~Domain() {
    api.ReleaseCustomOpDomain(domain);
    api.ReleaseCustomOpDomain(loop_domain);
  }
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  const OrtApi& api;
  Operators operators;
  LoopCacheOperators loop_operators;
  OrtCustomOpDomain* domain = nullptr;
  OrtCustomOpDomain* loop_domain = nullptr;
};

}  // namespace

CustomOperator::CustomOperator(const Operator& table, ONNXTensorElementDataType type, const char* provider, Run run)
    : OrtCustomOp{}, table(table), float_type(type), provider(provider), run(run) {
  version = ORT_API;
  GetName = [](const OrtCustomOp* op) { return self(op).table.name; };
  GetExecutionProviderType = [](const OrtCustomOp* op) { return self(op).provider; };
  GetInputTypeCount = [](const OrtCustomOp* op) { return self(op).table.inputs.size(); };
  GetInputType = [](const OrtCustomOp* op, size_t i) {
    return onnx_type(self(op).table.inputs[i].type, self(op).float_type);
  };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t i) {
    return self(op).table.inputs[i].is_optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  };
  GetInputMemoryType = [](const OrtCustomOp* op, size_t i) {
    return self(op).table.inputs[i].is_scalar ? OrtMemTypeCPUInput : OrtMemTypeDefault;
  };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return self(op).table.outputs.size(); };
  GetOutputType = [](const OrtCustomOp* op, size_t i) {
    return onnx_type(self(op).table.outputs[i].type, self(op).float_type);
  };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t i) {
    return self(op).table.outputs[i].is_optional ? INPUT_OUTPUT_OPTIONAL : INPUT_OUTPUT_REQUIRED;
  };
  GetStartVersion = [](const OrtCustomOp*) { return OPERATOR_VERSION; };
  GetEndVersion = [](const OrtCustomOp*) { return OPERATOR_VERSION; };
  CreateKernelV2 = create_node;
  KernelComputeV2 = run_node;
  KernelDestroy = [](void* node) { delete static_cast<Node*>(node); };
  InferOutputShapeFn = infer_shapes;
  ReleaseMayInplace = ReleaseAliasMap = [](int* inputs, int* outputs) {
    delete[] inputs;
    delete[] outputs;
  };
}

size_t shared_memory(const Operator& table, bool updates, int** inputs, int** outputs) {
  const auto shares = [&](const Output& output) { return output.input != nullptr && output.starts_as_copy == updates; };
  const auto count = static_cast<size_t>(std::count_if(table.outputs.begin(), table.outputs.end(), shares));
  *inputs = *outputs = nullptr;
  if (count == 0) return 0;  // the runtime would not release empty arrays
  *inputs = new int[count];
  *outputs = new int[count];
  for (size_t i = 0, pair = 0; i < table.outputs.size(); ++i) {
    if (!shares(table.outputs[i])) continue;
    (*inputs)[pair] = table.input(table.outputs[i].input);
    (*outputs)[pair++] = static_cast<int>(i);
  }
  return count;
}

std::vector<Copy> copies(const Call& call) {
  std::vector<Copy> copies;
  for (size_t i = 0; i < call.op.outputs.size(); ++i) {
    const Output& output = call.op.outputs[i];
    if (!output.starts_as_copy) continue;
    const Tensor& from = call.inputs[call.op.input(output.input)];
    if (!from.present || call.outputs[i] == nullptr || from.data == call.outputs[i]) continue;
    size_t bytes = bytes_of(from.type);
    for (int64_t size : from.shape) bytes *= static_cast<size_t>(size);
    copies.push_back({from.data, call.outputs[i], bytes});
  }
  return copies;
}

void copy_updated(const Call& call, const Parallel& parallel) {
  constexpr size_t BLOCK = 1 << 20;
  for (const Copy& copy : copies(call)) {
    parallel.for_each((copy.bytes + BLOCK - 1) / BLOCK, [&](size_t block) {
      const size_t begin = block * BLOCK;
      std::memcpy(static_cast<char*>(copy.to) + begin, static_cast<const char*>(copy.from) + begin,
                  std::min(BLOCK, copy.bytes - begin));
    });
  }
}

OrtStatus* register_operators(OrtSessionOptions* options, const OrtApiBase* base, void (*add_all)(Operators&)) {
  const OrtApi* api = base->GetApi(ORT_API);
  if (api == nullptr) {
    const std::string message =
        "tightbeam: needs ONNX Runtime 1." + std::to_string(ORT_API) + " or newer, this is " + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_FAIL, message.c_str());
  }
  return guarded(*api, "tightbeam", [&] {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    runtime = api;
    static const Domain domain(*api, base->GetVersionString(), add_all);  // never destroyed, since sessions point to it
    check(api->AddCustomOpDomain(options, domain.domain));
    check(api->AddCustomOpDomain(options, domain.loop_domain));
  });
}

}  // namespace tightbeam
