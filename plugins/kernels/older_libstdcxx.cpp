// The one function that GCC 11 and later call for std::vector and that an older libstdc++ does not have. With it here
// the libraries load wherever ONNX Runtime's wheels do. CMakeLists.txt tells the linker to send its callers here.
#include <new>

extern "C" [[noreturn]] void __wrap__ZSt28__throw_bad_array_new_lengthv();  // std::__throw_bad_array_new_length

void __wrap__ZSt28__throw_bad_array_new_lengthv() { throw std::bad_array_new_length(); }
