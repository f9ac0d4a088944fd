# The library libtightbeam_tensorrt.so plans the launches of the operators' CUDA kernels, for the plugins of
# plugins/tensorrt. It needs only a C++ compiler, since the kernels are compiled on the machine that runs them.
add_library(tightbeam_tensorrt MODULE tensorrt/library.cpp kernels/operator.cpp kernels/older_libstdcxx.cpp
  ${CMAKE_CURRENT_BINARY_DIR}/generated/operators.cpp)
install(TARGETS tightbeam_tensorrt LIBRARY DESTINATION tightbeam/plugins/lib)

# When TensorRT-RTX's parser meets a plugin, it loads libtensorrt_rtx.so, but its wheels have only libtensorrt_rtx.so.1,
# so the process is aborted. An empty library with the first name, loaded before, leads to the real one. It is linked
# with a stand-in that has the real library's name; the real one is loaded by then, and takes the stand-in's place.
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
