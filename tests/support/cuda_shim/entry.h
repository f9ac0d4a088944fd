// What Python calls: one function of C an operator and float type, and one for any kernel by its name, which return an
// error text or null.
#pragma once

#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda_shim.h"
// After what names CUDA's types:
#include "tensorrt/library.h"

namespace shim {

// The GPU that plans are made for.
inline tightbeam::Gpu gpu;

// Every kernel that a launch_<op> of this file can start, by its name; `parameters` as cuLaunchKernel takes them.
using LaunchByParameters = void (*)(const tightbeam::Launch& launch, void* const* parameters, int order);
static std::map<std::string, LaunchByParameters>& kernels_by_name() {
  static std::map<std::string, LaunchByParameters> kernels;
  return kernels;
}

template <class... Parameters, size_t... INDICES>
void start(void (*kernel)(Parameters...), const tightbeam::Launch& launch, void* const* parameters, int order,
           std::index_sequence<INDICES...>) {
  shim::launch(kernel, launch, order, *static_cast<const Parameters*>(parameters[INDICES])...);
}
template <class... Parameters>
void start(void (*kernel)(Parameters...), const tightbeam::Launch& launch, void* const* parameters, int order) {
  start(kernel, launch, parameters, order, std::index_sequence_for<Parameters...>());
}

template <auto FUNCTION>
const bool registered =
    kernels_by_name()
        .emplace(tightbeam::kernel_name<FUNCTION>(),
                 [](const tightbeam::Launch& launch, void* const* parameters, int order) {
                   start(FUNCTION, launch, parameters, order);
                 })
        .second;

// Starts a kernel on the host; the counterpart of LaunchOnStream.
struct LaunchOnHost {
  int order;

  template <auto FUNCTION, class... Arguments>
  void operator()(tightbeam::Kernel<FUNCTION>, const tightbeam::Launch& launch, const Arguments&... arguments) const {
    if (!registered<FUNCTION>) throw std::logic_error("two kernels are called " + tightbeam::kernel_name<FUNCTION>());
    shim::launch(FUNCTION, launch, order, arguments...);
  }
};

// Device memory of a call, filled with NaN; a write beyond it is an error.
class Workspace {
 public:
  explicit Workspace(size_t size) : size_(size), bytes_(size + GUARD_BYTES, 0xff) {
    std::memset(bytes_.data() + size, GUARD, GUARD_BYTES);
  }
  ~Workspace() noexcept(false) {
    for (size_t i = size_; i < bytes_.size(); ++i)
      if (bytes_[i] != GUARD && !std::uncaught_exceptions())
        throw std::runtime_error("a kernel wrote beyond its " + std::to_string(size_) + " bytes of workspace");
  }
  void* bytes() const { return const_cast<unsigned char*>(bytes_.data()); }

 private:
  static constexpr unsigned char GUARD = 0xa5;
  static constexpr size_t GUARD_BYTES = 256;
  size_t size_;
  std::vector<unsigned char> bytes_;
};

template <class Run>
const char* guarded(const Run& run) {
  static std::string error;
  try {
    run();
    return nullptr;
  } catch (const std::exception& exception) {
    error = exception.what();
    return error.c_str();
  }
}

}  // namespace shim

// One a line.
extern "C" const char* kernel_names() {
  static std::string names;
  names.clear();
  for (const auto& [name, start] : shim::kernels_by_name()) names += name + "\n";
  return names.c_str();
}

// As cuLaunchKernel.
extern "C" const char* launch_by_name(const char* name, const int* grid, int block, unsigned shared_bytes,
                                     void* const* parameters, int order) {
  return shim::guarded([&] {
    const auto found = shim::kernels_by_name().find(name);
    if (found == shim::kernels_by_name().end()) throw std::runtime_error(std::string("there is no kernel ") + name);
    found->second({{grid[0], grid[1], grid[2]}, block, shared_bytes}, parameters, order);
  });
}

#define TIGHTBEAM_SHIM_ENTRY(op, Arguments, Float, name)                                      \
  extern "C" const char* op##_##name(const tightbeam::Arguments<Float>* arguments, int order) { \
    return shim::guarded([&] {                                                                \
      const shim::Workspace workspace(tightbeam::op##_workspace(*arguments, shim::gpu));      \
      tightbeam::launch_##op(*arguments, shim::gpu, workspace.bytes(), shim::LaunchOnHost{order}); \
    });                                                                                       \
  }
// <op>_float32, <op>_float16 and <op>_bfloat16, which run its kernels; and the size of the arguments.
#define TIGHTBEAM_SHIM_ENTRIES(op, Arguments)                    \
  TIGHTBEAM_SHIM_ENTRY(op, Arguments, float, float32)            \
  TIGHTBEAM_SHIM_ENTRY(op, Arguments, __half, float16)           \
  TIGHTBEAM_SHIM_ENTRY(op, Arguments, __nv_bfloat16, bfloat16)   \
  extern "C" size_t op##_arguments() { return sizeof(tightbeam::Arguments<float>); }
