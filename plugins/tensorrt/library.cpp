// The library libtightbeam_tensorrt.so: the functions that plugins/tensorrt/native.py calls.
#include "tensorrt/library.h"

#include <cstdint>
#include <exception>

#include "generated/arguments.h"
#include "generated/launch_plans.h"
#include "generated/operators.h"
#include "kernels/exported.h"

// native.py has the same structs.
extern "C" {

struct TightbeamTensor {
  const void* data;
  const int64_t* shape;
  int32_t rank, present;
};

struct TightbeamKernel {
  const char* name;
  void* const* parameters;  // as cuLaunchKernel takes them
  int32_t grid[3], block;
  uint32_t shared_bytes;
};

// Valid until the thread's next plan.
struct TightbeamPlan {
  uint64_t workspace_bytes, most_workspace_bytes;
  const TightbeamKernel* kernels;
  int32_t count;
};
}

namespace tightbeam {
namespace {

struct Entry {
  const Operator& table;
  Plan (*plan[3])(const Call& call, const Gpu& gpu, void* workspace);  // by float type: float32, float16, bfloat16
};

#define TIGHTBEAM_PLAN(op, Arguments)                                                   \
  template <class Float>                                                                \
  Plan plan_of_##op(const Call& call, const Gpu& gpu, void* workspace) {                \
    const Arguments<Float> arguments = op##_arguments<Float>(call);                     \
    Plan plan{op##_workspace(arguments, gpu), op##_most_workspace(arguments, gpu), {}}; \
    launch_##op(arguments, gpu, workspace, RecordKernel{plan.kernels});                 \
    return plan;                                                                        \
  }
TIGHTBEAM_GPU_OPERATORS(TIGHTBEAM_PLAN)
#undef TIGHTBEAM_PLAN

const Entry& find(const char* name) {
  static const std::vector<Entry> entries = {
#define TIGHTBEAM_ENTRY(op, Arguments) \
  {op##_table(), {plan_of_##op<float>, plan_of_##op<Float16>, plan_of_##op<BFloat16>}},
      TIGHTBEAM_GPU_OPERATORS(TIGHTBEAM_ENTRY)
#undef TIGHTBEAM_ENTRY
  };
  for (const Entry& entry : entries)
    if (std::strcmp(entry.table.name, name) == 0) return entry;
  throw OperatorError{std::string(name) + ": no such operator"};
}

// ---- a call ----

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t size : shape) text += (text.empty() ? "[" : ", ") + std::to_string(size);
  return text.empty() ? "[]" : text + "]";
}

Type tensor_type(Element element, int float_type) {
  switch (element) {
    case Element::float32: return Type::float32;
    case Element::int8: return Type::int8;
    case Element::uint8: return Type::uint8;
    case Element::int32: return Type::int32;
    case Element::int64: return Type::int64;
    case Element::boolean: return Type::boolean;
    case Element::Float: break;
  }
  return float_type == 0 ? Type::float32 : float_type == 1 ? Type::float16 : Type::bfloat16;
}

std::vector<int64_t> shape_of(const TightbeamTensor& tensor) {
  return std::vector<int64_t>(tensor.shape, tensor.shape + tensor.rank);
}

// Finds a size that a scalar on the device gives from the shape of an output that has it.
void take_size(const Call& call, size_t output, const std::vector<int64_t>& shape, std::vector<int64_t>& sizes) {
  const std::vector<Dimension>& dimensions = call.op.outputs[output].dimensions;
  for (size_t d = 0; d < dimensions.size() && d < shape.size(); ++d) {
    const Dimension& dimension = dimensions[d];
    if (dimension.size() == 1 && dimension[0].factor == 1 && dimension[0].letters.size() == 1)
      if (int64_t& size = sizes[dimension[0].letters[0]]; size < 0) size = shape[d];
  }
}

// Checks sizes that scalars give. Without memory they are the largest of a profile, which need not occur together.
void check_given_sizes(const Call& call, const void* memory) {
  for (const Input& input : call.op.inputs) {
    if (input.letter == nullptr || memory == nullptr) continue;
    const int64_t size = call.sizes[call.op.letter(input.letter)], most = call.sizes[call.op.letter(input.most)];
    if (size > most)
      call.fail(std::string(input.name) + " is " + std::to_string(size) + ", expected 1 to " + std::to_string(most));
  }
}

Call make_call(const Operator& table, int float_type, const TightbeamTensor* inputs, const TightbeamTensor* outputs,
               const double* attributes, bool scalars_on_device) {
  Call call(table);
  call.scalars_on_device = scalars_on_device;
  call.attributes.assign(attributes, attributes + table.attributes.size());
  std::vector<KnownShape> shapes;
  for (size_t i = 0; i < table.inputs.size(); ++i) {
    Tensor tensor;
    tensor.name = table.inputs[i].name;
    tensor.type = tensor_type(table.inputs[i].type, float_type);
    tensor.present = inputs[i].present != 0;
    if (tensor.present) tensor.shape = shape_of(inputs[i]), tensor.data = inputs[i].data;
    if (!tensor.present && !table.inputs[i].is_optional && table.inputs[i].letter == nullptr)
      call.fail(std::string(tensor.name) + " is missing");
    shapes.push_back({tensor.present, tensor.present, tensor.shape, nullptr});
    call.inputs.push_back(std::move(tensor));
  }
  call.sizes = table.sizes(shapes);
  for (size_t i = 0; i < table.outputs.size(); ++i) {
    const Output& output = table.outputs[i];
    if (outputs[i].present == 0 && !output.is_optional) call.fail(std::string(output.name) + " is missing");
    call.outputs.push_back(outputs[i].present != 0 ? const_cast<void*>(outputs[i].data) : nullptr);
    if (outputs[i].present == 0) continue;
    const std::vector<int64_t> shape = shape_of(outputs[i]);
    take_size(call, i, shape, call.sizes);
    if (shape != table.output_shape(i, call.sizes))
      call.fail(std::string(output.name) + " is " + shape_text(shape) + ", expected [" + output.shape + "], " +
                shape_text(table.output_shape(i, call.sizes)));
    check_given_sizes(call, call.outputs[i]);
    if (output.starts_as_copy && call.outputs[i] != call.inputs[table.input(output.input)].data)
      call.fail(std::string(output.name) + " and " + output.input + " are in different memory, expected the same");
  }
  return call;
}

// The memory to which a TightbeamPlan points.
struct PlanMemory {
  Plan plan;
  std::vector<std::vector<void*>> parameters;
  std::vector<TightbeamKernel> kernels;
};

TightbeamPlan store(PlanMemory& memory, Plan plan) {
  memory = {std::move(plan), {}, {}};
  for (LaunchedKernel& kernel : memory.plan.kernels) {
    std::vector<void*>& parameters = memory.parameters.emplace_back();
    for (std::vector<unsigned char>& bytes : kernel.parameters) parameters.push_back(bytes.data());
  }
  for (size_t i = 0; i < memory.plan.kernels.size(); ++i) {
    const LaunchedKernel& kernel = memory.plan.kernels[i];
    const Launch& launch = kernel.launch;
    memory.kernels.push_back({kernel.name.c_str(),
                              memory.parameters[i].data(),
                              {launch.grid[0], launch.grid[1], launch.grid[2]},
                              launch.block,
                              launch.shared_bytes});
  }
  return {memory.plan.workspace_bytes, memory.plan.most_workspace_bytes, memory.kernels.data(),
          static_cast<int32_t>(memory.kernels.size())};
}

}  // namespace
}  // namespace tightbeam

// The fingerprint of this library's operators.
TIGHTBEAM_EXPORT const char* tightbeam_operators() { return tightbeam::OPERATORS_FINGERPRINT; }

// Plans the kernels that a call of an operator launches. Returns null, or a message that says what is wrong with the
// call. `inputs`, `outputs` and `attributes` are in the order of the operator's table. `float_type` is 0: float32, 1:
// float16, 2: bfloat16. Scalar inputs are on the device unless `scalars_on_host` is set.
TIGHTBEAM_EXPORT const char* tightbeam_plan(const char* name, int32_t float_type, const TightbeamTensor* inputs,
                                            const TightbeamTensor* outputs, const double* attributes,
                                            int32_t multiprocessors, uint32_t shared_bytes, int32_t capability,
                                            void* workspace, TightbeamPlan* plan, int32_t scalars_on_host) {
  using namespace tightbeam;
  thread_local PlanMemory memory;
  thread_local std::string failure;
  try {
    const Entry& entry = find(name);
    const Call call = make_call(entry.table, float_type, inputs, outputs, attributes, scalars_on_host == 0);
    *plan = store(memory, entry.plan[float_type](call, {multiprocessors, shared_bytes, capability}, workspace));
    return nullptr;
  } catch (const OperatorError& error) {
    failure = error.message;
  } catch (const std::exception& error) {
    failure = std::string(name) + ": " + error.what();
  }
  return failure.c_str();
}
