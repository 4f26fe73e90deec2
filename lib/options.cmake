# The options of this build. The top-level CMakeLists.txt includes this file before project(), so that a wrong option is refused before
# anything is looked for.

# fsdp_option(NAME HELP VALUE...): declares an option that takes one of the values; the first one is the default. CMake's other words for ON
# and OFF are accepted. Each option of the build is declared here, as any other -DFSDP_... is refused below.
set(fsdp_options "")
macro(fsdp_option name help)
  fsdp_set_option(${name} "${help}" ${ARGN})
  list(APPEND fsdp_options ${name})
endmacro()
function(fsdp_set_option name help)
  set(values ${ARGN})
  list(GET values 0 value)
  if(DEFINED ${name})
    string(TOUPPER "${${name}}" value)
    string(REGEX REPLACE "^(TRUE|YES|Y|1)$" "ON" value "${value}")
    string(REGEX REPLACE "^(FALSE|NO|N|0)$" "OFF" value "${value}")
    if(NOT value IN_LIST values)
      list(JOIN values ", " values)
      message(FATAL_ERROR "${name} is '${${name}}'; it takes one of ${values}: ${help}")
    endif()
  endif()
  set(${name} ${value} CACHE STRING "${help}" FORCE)
  set_property(CACHE ${name} PROPERTY STRINGS ${values})
endfunction()

# Optional dependencies: ON fails if they are not found, AUTO builds without them then, and the last lines of the configuration say so.
fsdp_option(FSDP_WITH_CUDA "Build libfsdp_cuda, for NVIDIA's GPUs" AUTO ON OFF)
fsdp_option(FSDP_WITH_NCCL "GPUs exchange data through NCCL" AUTO ON OFF)
fsdp_option(FSDP_WITH_CUDNN "Build libfsdp_cudnn: GPUs can compute attention by cuDNN" AUTO ON OFF)
fsdp_option(FSDP_WITH_ZSTD "Read texts and Parquet files that zstd has packed" AUTO ON OFF)
fsdp_option(FSDP_WITH_TESTS "Build the tests, which need Boost.Test" AUTO ON OFF)
fsdp_option(FSDP_WITH_LIBFUZZER "Build fuzz_libfuzzer (clang 16 or newer, with -fsanitize=fuzzer-no-link among CMAKE_CXX_FLAGS)" OFF ON)
fsdp_option(FSDP_WERROR "Treat warnings as errors" OFF ON)
fsdp_option(FSDP_UNITY_BUILD "Compile the files of a layer together: a whole build takes about half the time, a change of one file longer" OFF ON)
# Their defaults depend on what is found: the library for matrix products, in CMakeLists.txt, and a list of words, in tests/CMakeLists.txt.
list(APPEND fsdp_options FSDP_BLAS FSDP_MPIRUN_OPTIONS)
if(CMAKE_TOOLCHAIN_FILE MATCHES "/tools/aarch64\\.cmake$")  # those of tools/aarch64
  list(APPEND fsdp_options FSDP_AARCH64_ROOT FSDP_SBSA_CUDA FSDP_NATIVE_BIN)
endif()

get_cmake_property(variables CACHE_VARIABLES)
foreach(variable IN LISTS variables)
  get_property(help CACHE ${variable} PROPERTY HELPSTRING)
  if(variable MATCHES "^[Ff][Ss][Dd][Pp]_" AND help MATCHES "specified on the command line" AND NOT variable IN_LIST fsdp_options)
    unset(${variable} CACHE)  # the next configuration of this folder does not have it
    list(JOIN fsdp_options ", " fsdp_options)
    message(FATAL_ERROR "-D${variable}: no part of the build has this option; it has ${fsdp_options}")
  endif()
endforeach()

# Macros for what was chosen and why. fsdp_without() is for an optional dependency that was not found, or that is not wanted.
set(fsdp_choices "")
macro(fsdp_with option what why)
  list(APPEND fsdp_choices "with ${what} (${option}=${${option}}: ${why})")
endmacro()
macro(fsdp_without option what why)
  if("${${option}}" STREQUAL "ON")
    message(FATAL_ERROR "${option}=ON, but ${why}; -D${option}=OFF builds without ${what}")
  elseif("${${option}}" STREQUAL "OFF")
    list(APPEND fsdp_choices "without ${what} (${option}=OFF)")
  else()
    list(APPEND fsdp_choices "without ${what} (${option}=${${option}}: ${why})")
  endif()
endmacro()
