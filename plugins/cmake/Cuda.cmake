# The library libtightbeam_cuda.so.
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "tightbeam: TIGHTBEAM_CUDA=ON, but there is no nvcc; name it: -DCMAKE_CUDA_COMPILER=/path/to/nvcc "
    "(with pip: -C cmake.define.CMAKE_CUDA_COMPILER=/path/to/nvcc), or leave TIGHTBEAM_CUDA out")
endif()
set(CMAKE_CUDA_ARCHITECTURES 80)  # for CMake's own checks of nvcc
enable_language(CUDA)
set(CMAKE_CUDA_ARCHITECTURES ${TIGHTBEAM_CUDA_ARCHITECTURES})
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8 AND CMAKE_CUDA_ARCHITECTURES MATCHES 120)
  message(STATUS "tightbeam: nvcc ${CMAKE_CUDA_COMPILER_VERSION} does not know sm_100 and sm_120 (12.8 does), "
    "so these GPUs get PTX of sm_90")
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90)
endif()
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

file(GLOB cuda_sources ${CMAKE_CURRENT_BINARY_DIR}/generated/cuda/*.cu)
add_library(tightbeam_cuda MODULE onnxruntime/register.cpp onnxruntime/cuda.cpp ${cuda_sources} $<TARGET_OBJECTS:tightbeam_operators> ${kernel_objects})
target_compile_definitions(tightbeam_cuda PRIVATE TIGHTBEAM_WITH_CUDA)
target_compile_options(tightbeam_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xfatbin=-compress-all>)
if(TIGHTBEAM_WERROR)
  target_compile_options(tightbeam_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror>)
endif()
# The CUDA runtime is linked into the library, which then needs only the driver, beside any runtime of the process.
# TIGHTBEAM_SHARED_CUDA_RUNTIME links it dynamically, for tests that replace it.
set_target_properties(tightbeam_cuda PROPERTIES
  CUDA_RUNTIME_LIBRARY $<IF:$<BOOL:${TIGHTBEAM_SHARED_CUDA_RUNTIME}>,Shared,Static>)
target_link_libraries(tightbeam_cuda PRIVATE Threads::Threads
  $<IF:$<BOOL:${TIGHTBEAM_SHARED_CUDA_RUNTIME}>,CUDA::cudart,CUDA::cudart_static>)
install(TARGETS tightbeam_cuda LIBRARY DESTINATION tightbeam/plugins/lib)
