# Looks for CUDA and NCCL. If one is missing, a message reports it and the consequence; nothing is downloaded. Included by the top-level
# CMakeLists.txt, because it enables a language. Sets FSDP_HAVE_CUDA, FSDP_HAVE_NCCL, and FSDP_CUDA_SUMMARY for the last line of the
# configuration.
set(FSDP_CUDA_SUMMARY "no CUDA")
if(NOT FSDP_WITH_CUDA)
  return()
endif()
set(fsdp_without_cuda "all computes on CPUs. tools/install --cuda says how to get it, and CMAKE_CUDA_COMPILER or CUDACXX where it is")

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA was not found (no nvcc that works): ${fsdp_without_cuda}")
  return()
endif()
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
if(nvcc_says MATCHES "release ([0-9]+\\.[0-9]+)" AND CMAKE_MATCH_1 VERSION_LESS 12.0)
  message(STATUS "CUDA ${CMAKE_MATCH_1} (${CMAKE_CUDA_COMPILER}) is too old, as it knows no C++20 (12 or 13 is needed): ${fsdp_without_cuda}")
  return()
endif()

# By default, machine code for the GPUs that the toolkit supports out of A100, H100 and H200, B200, RTX 50 and RTX PRO, and PTX for the
# newest, which the driver compiles for later GPUs. CMAKE_CUDA_ARCHITECTURES overrides the list.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known_architectures ERROR_QUIET)
  foreach(architecture 80 90 100 120)
    if(known_architectures MATCHES "compute_${architecture}(\n|$)")
      list(APPEND machine_code ${architecture}-real)
      set(CMAKE_CUDA_ARCHITECTURES ${machine_code} ${architecture}-virtual)
    endif()
  endforeach()
endif()

string(APPEND CMAKE_CUDA_FLAGS " -std=c++20")  # CMake 3.25 does not pass it to nvcc 13
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(NOT TARGET CUDA::cublasLt)
  message(STATUS "cuBLASLt was not found in ${CUDAToolkit_LIBRARY_DIR} (the package libcublas-dev of NVIDIA's): ${fsdp_without_cuda}")
  return()
endif()
set(FSDP_HAVE_CUDA ON)
string(REPLACE ";" " " architectures "${CMAKE_CUDA_ARCHITECTURES}")
set(FSDP_CUDA_SUMMARY "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${architectures}")

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  set(FSDP_HAVE_NCCL ON)
  string(APPEND FSDP_CUDA_SUMMARY ", NCCL ${NCCL_LIBRARY}")
else()
  message(STATUS "NCCL was not found (its nccl.h or libnccl.so): GPUs exchange data through memory of the host. "
    "-DNCCL_INCLUDE_DIR= and -DNCCL_LIBRARY= say where it is")
  string(APPEND FSDP_CUDA_SUMMARY ", no NCCL")
endif()
