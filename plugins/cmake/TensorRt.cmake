# libtightbeam_tensorrt.so: how the operators' CUDA kernels are launched, for the plugins of plugins/tensorrt. Needs nothing but a C++ compiler: the kernels are compiled where they run.
add_library(tightbeam_tensorrt MODULE tensorrt/library.cpp kernels/operator.cpp kernels/older_libstdcxx.cpp
  ${CMAKE_CURRENT_BINARY_DIR}/generated/operators.cpp)
install(TARGETS tightbeam_tensorrt LIBRARY DESTINATION tightbeam/plugins/lib)

# TensorRT-RTX's parser looks for libtensorrt_rtx.so when it meets a plugin, and its wheels have libtensorrt_rtx.so.1
# alone: the process is aborted. An empty library of that name, loaded first, leads to the real one. The one it is linked
# with here has only the real one's name; at run time the real one, which has been loaded by then, takes its place.
if(UNIX AND NOT APPLE)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp "")
  add_library(tensorrt_rtx_stand_in SHARED ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
  set_target_properties(tensorrt_rtx_stand_in PROPERTIES NO_SONAME ON)
  target_link_options(tensorrt_rtx_stand_in PRIVATE LINKER:-soname,libtensorrt_rtx.so.1)
  add_library(tensorrt_rtx_name SHARED ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp)
  set_target_properties(tensorrt_rtx_name PROPERTIES NO_SONAME ON SKIP_BUILD_RPATH ON)
  target_link_options(tensorrt_rtx_name PRIVATE LINKER:-soname,libtensorrt_rtx.so LINKER:--no-as-needed)
  target_link_libraries(tensorrt_rtx_name PRIVATE tensorrt_rtx_stand_in)
  install(TARGETS tensorrt_rtx_name LIBRARY DESTINATION tightbeam/plugins/lib)
endif()
