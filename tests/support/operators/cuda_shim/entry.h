// Every kernel that the operators of a file can start, by its name, and how Python starts one.
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

// `parameters` as cuLaunchKernel takes them.
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
const bool registered = [] {
  const auto by_parameters = [](const tightbeam::Launch& launch, void* const* parameters, int order) {
    start(FUNCTION, launch, parameters, order);
  };
  const std::string name = tightbeam::kernel_name<FUNCTION>();
  if (!kernels_by_name().emplace(name, by_parameters).second) throw std::logic_error("two kernels are called " + name);
  return true;
}();

// Registers the kernels that launch_<op> names, when the library is loaded; nothing calls it.
struct RegisterKernel {
  template <auto FUNCTION, class... Arguments>
  bool operator()(tightbeam::Kernel<FUNCTION>, const tightbeam::Launch&, const Arguments&...) const {
    return registered<FUNCTION>;
  }
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

#define TIGHTBEAM_SHIM_KERNELS_OF(op, Arguments, Float)                                                  \
  template void tightbeam::launch_##op(const tightbeam::Arguments<Float>&, const tightbeam::Gpu&, void*, \
                                       const shim::RegisterKernel&);
// The kernels of an operator, in every float type.
#define TIGHTBEAM_SHIM_KERNELS(op, Arguments)      \
  TIGHTBEAM_SHIM_KERNELS_OF(op, Arguments, float)  \
  TIGHTBEAM_SHIM_KERNELS_OF(op, Arguments, __half) \
  TIGHTBEAM_SHIM_KERNELS_OF(op, Arguments, __nv_bfloat16)
