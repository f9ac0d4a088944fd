# A file named *_kernels.cpp is compiled once for each instruction set: for every processor ("baseline", which is NEON
# on arm64), and on x86-64 for AVX2 with FMA ("v3") and for AVX-512 ("v4"). quantized_kernels.cpp is also compiled for
# each set with dot products of bytes: on x86-64 for both with VNNI, on arm64 for "dotprod" and for "i8mm", which has
# products of matrices too. quantized_amx_kernels.cpp is compiled for "v4_amx" alone, which is VNNI with AMX, and only on
# Linux, since no other system is asked for AMX. Each file gets TIGHTBEAM_ISA, one of these names, and TIGHTBEAM_LANES,
# the number of floats in a register.
# kernels/cpu/instruction_sets.h finds the machine's best set when a kernel first runs.
#
# If such a file uses an inline function or a template of a common header, and the compiler does not inline it, it
# becomes a weak symbol, of which the linker keeps one copy. An AVX-512 copy would be an illegal instruction on older
# processors. So in these files only names that end with the set have external linkage. tests/plugins/test_build.py
# checks that their objects have no weak symbol.
set(levels baseline)
set(levels_of_bytes v3_vnni v4_vnni dotprod i8mm)  # of quantized_kernels.cpp alone
set(baseline_options "")
set(baseline_lanes 4)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  list(APPEND levels v3 v4 v3_vnni v4_vnni)
  add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:TIGHTBEAM_X86_64>)
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    list(APPEND levels v4_amx)
    add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:TIGHTBEAM_AMX>)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  list(APPEND levels dotprod i8mm)
  add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:TIGHTBEAM_AARCH64>)
endif()
set(v3_options -mavx2 -mfma)
set(v3_lanes 8)
set(v4_options ${v3_options} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
set(v4_lanes 16)
set(v3_vnni_options ${v3_options} -mavxvnni)
set(v3_vnni_lanes 8)
set(v4_vnni_options ${v4_options} -mavx512vnni)
set(v4_vnni_lanes 16)
set(v4_amx_options ${v4_vnni_options} -mamx-tile -mamx-int8)
set(v4_amx_lanes 16)
set(dotprod_options -march=armv8.2-a+dotprod)
set(dotprod_lanes 4)
set(i8mm_options -march=armv8.2-a+dotprod+i8mm)
set(i8mm_lanes 4)

# Vectors need contraction to FMA, and neither errno nor floating-point traps. Sums keep their order.
set(kernel_options -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND kernel_options -fno-schedule-insns)  # it puts the sums of the widest products into memory
endif()
# Quantised products, and attention over integers, must be the same on every processor, so they are not contracted.
set_source_files_properties(kernels/cpu/quantized_kernels.cpp kernels/cpu/byte_rows_kernels.cpp
  kernels/cpu/attention/history_bytes_kernels.cpp
  PROPERTIES COMPILE_OPTIONS -ffp-contract=off)

set(kernel_objects "")
set(amx_kernels ${kernels})
list(FILTER amx_kernels INCLUDE REGEX "/quantized_amx_kernels\\.cpp$")
list(REMOVE_ITEM kernels ${amx_kernels})
foreach(level IN LISTS levels)
  set(level_kernels ${kernels})
  if(level STREQUAL v4_amx)
    set(level_kernels ${amx_kernels})
  elseif(level IN_LIST levels_of_bytes)
    list(FILTER level_kernels INCLUDE REGEX "/quantized_kernels\\.cpp$")
  endif()
  add_library(tightbeam_kernels_${level} OBJECT ${level_kernels})
  target_compile_definitions(tightbeam_kernels_${level} PRIVATE TIGHTBEAM_ISA=${level}
    TIGHTBEAM_LANES=${${level}_lanes})
  target_compile_options(tightbeam_kernels_${level} PRIVATE ${kernel_options} ${${level}_options})
  list(APPEND kernel_objects $<TARGET_OBJECTS:tightbeam_kernels_${level}>)
endforeach()
