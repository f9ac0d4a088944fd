// The kernels that a call of an operator launches, by name and with the bytes of their parameters. Needs neither
// TensorRT nor CUDA; plugins/tensorrt compiles the kernels and launches them.
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
  std::string name;  // a C++ expression: tightbeam::device::beam_attention_kernel<float, 4, 1, true>
  Launch launch;
  std::vector<std::vector<unsigned char>> parameters;
};

struct Plan {
  unsigned long long workspace_bytes, most_workspace_bytes;
  std::vector<LaunchedKernel> kernels;
};

// The name as the compiler spells it, which may leave out our namespace; with the float types as CUDA calls them.
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

// Takes note of each kernel in place of starting it.
struct NoteKernel {
  std::vector<LaunchedKernel>& kernels;

  template <auto FUNCTION, class... Arguments>
  void operator()(Kernel<FUNCTION>, const Launch& launch, const Arguments&... arguments) const {
    note(FUNCTION, kernel_name<FUNCTION>(), launch, arguments...);
  }

 private:
  template <class... Parameters, class... Arguments>
  void note(void (*)(Parameters...), std::string name, const Launch& launch, const Arguments&... arguments) const {
    static_assert((std::is_same_v<Parameters, Arguments> && ...),
                  "a parameter would be converted, so its bytes differ");
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
