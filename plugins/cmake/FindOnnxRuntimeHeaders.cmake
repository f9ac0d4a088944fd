# Finds the folder of onnxruntime_c_api.h, and sets ONNXRUNTIME_INCLUDE_DIR and OnnxRuntimeHeaders_FOUND.
#
# It is ONNXRUNTIME_INCLUDE_DIR if that is given, else the system's folder (CMAKE_PREFIX_PATH, pkg-config,
# /usr/include/onnxruntime), else the folder that fetch_headers.py makes, unless TIGHTBEAM_FETCH_HEADERS is OFF. No
# Python package has the headers.
set(oldest_api 18)  # ORT_API of onnxruntime/adapter.h

# The version of the API in a folder's header; 0 if the header is missing.
function(header_api folder result)
  set(${result} 0 PARENT_SCOPE)
  if(EXISTS "${folder}/onnxruntime_c_api.h")
    file(STRINGS "${folder}/onnxruntime_c_api.h" line REGEX "^#define ORT_API_VERSION [0-9]+" LIMIT_COUNT 1)
    string(REGEX MATCH "[0-9]+$" number "${line}")
    set(${result} "${number}" PARENT_SCOPE)
  endif()
endfunction()

if(ONNXRUNTIME_INCLUDE_DIR)
  header_api("${ONNXRUNTIME_INCLUDE_DIR}" api)
  if(api LESS oldest_api)
    message(FATAL_ERROR "tightbeam: ONNXRUNTIME_INCLUDE_DIR=${ONNXRUNTIME_INCLUDE_DIR} has no onnxruntime_c_api.h of API "
      "${oldest_api} (ONNX Runtime 1.${oldest_api}) or newer")
  endif()
else()
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(PC_ONNXRUNTIME QUIET libonnxruntime)
  endif()
  find_path(ONNXRUNTIME_SYSTEM_DIR onnxruntime_c_api.h HINTS ${PC_ONNXRUNTIME_INCLUDE_DIRS}
    PATH_SUFFIXES onnxruntime onnxruntime/core/session NO_CACHE)
  header_api("${ONNXRUNTIME_SYSTEM_DIR}" api)
  if(api GREATER_EQUAL oldest_api)
    set(ONNXRUNTIME_INCLUDE_DIR "${ONNXRUNTIME_SYSTEM_DIR}")
  elseif(TIGHTBEAM_FETCH_HEADERS)
    find_package(Python COMPONENTS Interpreter QUIET)
    if(Python_EXECUTABLE)
      execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/fetch_headers.py ${oldest_api}
        OUTPUT_VARIABLE ONNXRUNTIME_INCLUDE_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE fetched)
      if(NOT fetched EQUAL 0)
        set(ONNXRUNTIME_INCLUDE_DIR "")
      endif()
    else()
      message(STATUS "tightbeam: Python is missing, so ONNX Runtime's headers are not fetched")
    endif()
  endif()
endif()

header_api("${ONNXRUNTIME_INCLUDE_DIR}" api)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntimeHeaders REQUIRED_VARS ONNXRUNTIME_INCLUDE_DIR VERSION_VAR api)
