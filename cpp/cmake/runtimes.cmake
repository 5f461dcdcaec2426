# What the library is made with. JSON for Modern C++ and OpenSSL are needed; of the runtimes, what is found is compiled
# in, and of what is not found the library says at run time that it was built without it. To leave one out that is there:
# -DCMAKE_DISABLE_FIND_PACKAGE_OpenVINO=ON, -DONNXRUNTIME_INCLUDE_DIR=OFF, -DTENSORRT_INCLUDE_DIR=OFF.
set(ATTNPORT_NEW_TARGETS "")
foreach(target Threads::Threads nlohmann_json::nlohmann_json OpenSSL::Crypto openvino::runtime)
  if(NOT TARGET ${target})
    list(APPEND ATTNPORT_NEW_TARGETS ${target})
  endif()
endforeach()
find_package(Threads REQUIRED)
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json 3.7 QUIET)
endif()
if(NOT TARGET nlohmann_json::nlohmann_json)
  message(FATAL_ERROR
    "attnport_bundle needs JSON for Modern C++, 3.7 or later, which was not found here: package nlohmann-json3-dev, "
    "json-devel or nlohmann-json, or the folder of its CMake files in -Dnlohmann_json_DIR=...")
endif()
find_package(OpenSSL 1.1.1 QUIET)
if(NOT TARGET OpenSSL::Crypto)
  message(FATAL_ERROR
    "attnport_bundle needs OpenSSL, 1.1.1 or later, which was not found here: package libssl-dev or openssl-devel, or "
    "its folder in -DOPENSSL_ROOT_DIR=...")
endif()
find_package(OpenVINO QUIET COMPONENTS Runtime)
# A program of the project that includes this folder links what a static library needs: it has to see these targets.
foreach(target ${ATTNPORT_NEW_TARGETS})
  if(TARGET ${target})
    get_target_property(ATTNPORT_ALIASED ${target} ALIASED_TARGET)
    if(NOT ATTNPORT_ALIASED)
      set_target_properties(${target} PROPERTIES IMPORTED_GLOBAL TRUE)
    endif()
  endif()
endforeach()

# Looks for a header in `folder`, where that is given, else where the system has it; sets `result`. What was named and
# is not there is an error, and OFF is no search at all.
function(attnport_headers result folder header)
  set(found "")
  if(NOT DEFINED ${folder} OR "${${folder}}" STREQUAL "")
    find_path(ATTNPORT_FOUND_${folder} ${header} PATH_SUFFIXES ${ARGN})
    mark_as_advanced(ATTNPORT_FOUND_${folder})
    if(ATTNPORT_FOUND_${folder})
      set(found "${ATTNPORT_FOUND_${folder}}")
    endif()
  elseif(${folder})
    set(found "${${folder}}")
  endif()
  if(found AND NOT EXISTS "${found}/${header}")
    message(FATAL_ERROR "${folder} is ${found}, which has no ${header}.")
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()
attnport_headers(ATTNPORT_ONNXRUNTIME ONNXRUNTIME_INCLUDE_DIR onnxruntime_c_api.h onnxruntime onnxruntime/core/session)
attnport_headers(ATTNPORT_TENSORRT TENSORRT_INCLUDE_DIR NvInferRuntime.h)
attnport_headers(ATTNPORT_CUDA CUDA_INCLUDE_DIR cuda_runtime_api.h cuda/include)
if(ATTNPORT_TENSORRT AND NOT ATTNPORT_CUDA)
  message(STATUS "attnport_bundle: TensorRT's headers include CUDA's, which are not there: CUDA_INCLUDE_DIR")
  set(ATTNPORT_TENSORRT "")
endif()
if(NOT ATTNPORT_ONNXRUNTIME AND NOT OpenVINO_FOUND AND NOT ATTNPORT_TENSORRT)
  message(FATAL_ERROR
    "attnport_bundle found no runtime to be built for; one is enough:\n"
    "  ONNX Runtime: its headers (package libonnxruntime-dev, or the include folder of a release), in "
    "-DONNXRUNTIME_INCLUDE_DIR=...; its library is looked for when a model is opened\n"
    "  OpenVINO: the folder of OpenVINOConfig.cmake in -DOpenVINO_DIR=...; the Python package tells its own with "
    "python -c \"import openvino.utils as u; print(u.get_cmake_path())\"\n"
    "  TensorRT or TensorRT-RTX: the folders of NvInferRuntime.h and cuda_runtime_api.h in -DTENSORRT_INCLUDE_DIR=... "
    "and -DCUDA_INCLUDE_DIR=...")
endif()

function(attnport_tell found how)
  if(found)
    message(STATUS "attnport_bundle: with ${how}")
  else()
    message(STATUS "attnport_bundle: WITHOUT ${how}")
  endif()
endfunction()
attnport_tell("${ATTNPORT_ONNXRUNTIME}" "ONNX Runtime: headers in ONNXRUNTIME_INCLUDE_DIR")
attnport_tell("${OpenVINO_FOUND}" "OpenVINO: its CMake files in OpenVINO_DIR")
attnport_tell("${ATTNPORT_TENSORRT}" "TensorRT: headers in TENSORRT_INCLUDE_DIR and CUDA_INCLUDE_DIR")

function(attnport_link_runtimes target)
  target_link_libraries(${target} PRIVATE
    Threads::Threads OpenSSL::Crypto $<BUILD_INTERFACE:nlohmann_json::nlohmann_json> ${CMAKE_DL_LIBS})
  if(ATTNPORT_ONNXRUNTIME)
    target_compile_definitions(${target} PRIVATE ATTNPORT_WITH_ONNXRUNTIME=1)
    target_include_directories(${target} SYSTEM PRIVATE "${ATTNPORT_ONNXRUNTIME}")
  endif()
  if(OpenVINO_FOUND)
    target_compile_definitions(${target} PRIVATE ATTNPORT_WITH_OPENVINO=1)
    target_link_libraries(${target} PRIVATE openvino::runtime)
  endif()
  if(ATTNPORT_TENSORRT)
    target_compile_definitions(${target} PRIVATE ATTNPORT_WITH_TENSORRT=1)
    target_include_directories(${target} SYSTEM PRIVATE "${ATTNPORT_TENSORRT}" "${ATTNPORT_CUDA}")
  endif()
endfunction()
