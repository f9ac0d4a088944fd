// What Python calls: one function of C an operator and float type, which returns an error text or null.
#pragma once

#include <exception>
#include <string>

#include "common/launch.h"
#include "cuda_shim.h"

namespace shim {

// The GPU that plans are made for.
inline tightbeam::Gpu gpu;

// Starts a kernel on the host; the counterpart of StartOnStream.
struct StartOnHost {
  int order;

  template <auto FUNCTION, class... Arguments>
  void operator()(tightbeam::Kernel<FUNCTION>, const tightbeam::Launch& launch, const Arguments&... arguments) const {
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

#define TIGHTBEAM_SHIM_ENTRY(op, Arguments, Float, name)                                      \
  extern "C" const char* op##_##name(const tightbeam::Arguments<Float>* arguments, int order) { \
    return shim::guarded([&] {                                                                \
      const shim::Workspace workspace(tightbeam::op##_workspace(*arguments, shim::gpu));      \
      tightbeam::start_##op(*arguments, shim::gpu, workspace.bytes(), shim::StartOnHost{order}); \
    });                                                                                       \
  }
// <op>_float32, <op>_float16 and <op>_bfloat16, which run its kernels; and the size of the arguments.
#define TIGHTBEAM_SHIM_ENTRIES(op, Arguments)                    \
  TIGHTBEAM_SHIM_ENTRY(op, Arguments, float, float32)            \
  TIGHTBEAM_SHIM_ENTRY(op, Arguments, __half, float16)           \
  TIGHTBEAM_SHIM_ENTRY(op, Arguments, __nv_bfloat16, bfloat16)   \
  extern "C" size_t op##_arguments() { return sizeof(tightbeam::Arguments<float>); }
