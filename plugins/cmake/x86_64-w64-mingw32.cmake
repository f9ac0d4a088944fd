# Compiles for Windows on x86-64 with Debian's package g++-mingw-w64-x86-64-posix:
#
#   cmake -S plugins -B build/windows -DCMAKE_TOOLCHAIN_FILE=cmake/x86_64-w64-mingw32.cmake
#
# ONNX Runtime's headers are those of this machine: they are the same for every system.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
