# Compiles for Linux on arm64 with Debian's package g++-aarch64-linux-gnu:
#
#   cmake -S plugins -B build/arm64/native -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake
#
# ONNX Runtime's headers are those of this machine: they are the same for every processor.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
