// A function that GCC 11 and later call in code with arrays, and that an older libstdc++ lacks. With our own definition
// the libraries load wherever ONNX Runtime's wheels do. CMakeLists.txt tells the linker to redirect the calls to it.
#include <new>

extern "C" [[noreturn]] void __wrap__ZSt28__throw_bad_array_new_lengthv();  // std::__throw_bad_array_new_length

void __wrap__ZSt28__throw_bad_array_new_lengthv() { throw std::bad_array_new_length(); }
