// The kernels that a call of an operator launches: their names and the bytes of their parameters. This needs neither
// TensorRT nor CUDA. plugins/tensorrt compiles and launches the kernels.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/floats.h"
#include "kernels/operator.h"

namespace tightbeam {

struct LaunchedKernel {
  std::string name;  // a C++ expression, such as tightbeam::device::beam_attention_kernel<float, 4, 1, true>
  Launch launch;
  std::vector<std::vector<unsigned char>> parameters;
};

struct Plan {
  unsigned long long workspace_bytes, most_workspace_bytes;
  std::vector<LaunchedKernel> kernels;
};

// The name as the compiler writes it, with our namespace added if it is missing, and with CUDA's names of float types.
template <auto FUNCTION>
std::string kernel_name() {
  const std::string text = __PRETTY_FUNCTION__;
  const size_t begin = text.find("device::", text.find("FUNCTION = "));
  std::string name = text.substr(begin, text.find_first_of(";]", begin) - begin);
  const char* const changes[][2] = {{"tightbeam::", ""}, {"BFloat16", "__nv_bfloat16"}, {"Float16", "__half"}};
  for (const auto& [from, to] : changes)
    for (size_t at; (at = name.find(from)) != std::string::npos;) name.replace(at, std::strlen(from), to);
  return "tightbeam::" + name;
}

// A launcher that records each kernel instead of launching it.
struct RecordKernel {
  std::vector<LaunchedKernel>& kernels;

  template <auto FUNCTION, class... Arguments>
  void operator()(Kernel<FUNCTION>, const Launch& launch, const Arguments&... arguments) const {
    record(FUNCTION, kernel_name<FUNCTION>(), launch, arguments...);
  }

 private:
  template <class... Parameters, class... Arguments>
  void record(void (*)(Parameters...), std::string name, const Launch& launch, const Arguments&... arguments) const {
    static_assert((std::is_same_v<Parameters, Arguments> && ...),
                  "an argument would be converted, so its bytes would be wrong");
    kernels.push_back({std::move(name), launch, {bytes_of(arguments)...}});
  }

  template <class Argument>
  static std::vector<unsigned char> bytes_of(const Argument& argument) {
    static_assert(std::is_trivially_copyable_v<Argument>);
    std::vector<unsigned char> bytes(sizeof argument);
    std::memcpy(bytes.data(), &argument, sizeof argument);
    return bytes;
  }
};

}  // namespace tightbeam
