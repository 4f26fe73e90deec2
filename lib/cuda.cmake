# libfsdp_cuda has all code that needs CUDA's libraries except cuDNN; libfsdp loads it when a GPU is requested (device/cuda_library.hpp). The tests
# compile the same sources with a double of these libraries (tests/cuda_double).
file(GLOB FSDP_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/device/cuda/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/*.cpp)
file(GLOB FSDP_CUDA_KERNELS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/kernels/rows/*.cu)
file(GLOB FSDP_NCCL_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/comm/nccl/nccl_groups.cpp)
set(FSDP_CUDA_SOURCES ${FSDP_CUDA_SOURCES} PARENT_SCOPE)
set(FSDP_NCCL_SOURCES ${FSDP_NCCL_SOURCES} PARENT_SCOPE)
set(FSDP_CUDA_KERNELS ${FSDP_CUDA_KERNELS} PARENT_SCOPE)
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/device/cuda_library.cpp PROPERTIES COMPILE_DEFINITIONS
  "FSDP_VERSION=\"${PROJECT_VERSION}\"")
target_link_libraries(fsdp PRIVATE ${CMAKE_DL_LIBS})
# row_functions.cpp includes the row bodies, but does not compile their loops.
set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/kernels/cuda/row_functions.cpp PROPERTIES COMPILE_OPTIONS -fopenmp-simd)

if(FSDP_HAVE_CUDA)
  # The kernels are a library of their own, because the test kernels.cuda_twin compares them with the CPU's.
  add_library(fsdp_kernels_cuda OBJECT ${FSDP_CUDA_KERNELS})
  target_include_directories(fsdp_kernels_cuda PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(fsdp_kernels_cuda PUBLIC $<$<COMPILE_LANGUAGE:CUDA>:FSDP_GPU>)
  # -fmad=false: no fused products that the code does not ask for, so that initial weights have the same bits as on the CPU. --threads=0:
  # architectures are compiled in parallel.
  target_compile_options(fsdp_kernels_cuda PRIVATE --expt-relaxed-constexpr -fmad=false --threads=0)
  target_link_libraries(fsdp_kernels_cuda PUBLIC CUDA::cudart_static fmt::fmt PRIVATE fsdp_flags)
  set_target_properties(fsdp_kernels_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)

  add_library(fsdp_cuda MODULE ${FSDP_CUDA_SOURCES})
  target_compile_definitions(fsdp_cuda PRIVATE "FSDP_VERSION=\"${PROJECT_VERSION}\"")
  target_include_directories(fsdp_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(fsdp_cuda PRIVATE fsdp fsdp_flags fsdp_kernels_cuda CUDA::cudart_static CUDA::cublasLt)
  if(FSDP_HAVE_NCCL)
    target_sources(fsdp_cuda PRIVATE ${FSDP_NCCL_SOURCES})
    target_include_directories(fsdp_cuda SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
    target_link_libraries(fsdp_cuda PRIVATE ${NCCL_LIBRARY})
  endif()
  set_target_properties(fsdp_cuda PROPERTIES INSTALL_RPATH $ORIGIN INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS fsdp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})

  # libfsdp_cuda loads it if --attention-backend asks for cuDNN.
  if(FSDP_HAVE_CUDNN)
    add_library(fsdp_cudnn MODULE ${CMAKE_CURRENT_SOURCE_DIR}/kernels/cudnn/attention.cpp)
    target_compile_definitions(fsdp_cudnn PRIVATE "FSDP_VERSION=\"${PROJECT_VERSION}\"")
    target_compile_options(fsdp_cudnn PRIVATE -O1)  # it only builds graphs and launches
    target_include_directories(fsdp_cudnn SYSTEM PRIVATE ${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(fsdp_cudnn PRIVATE fsdp fsdp_flags ${CUDNN_LIBRARY} CUDA::nvrtc CUDA::cudart_static)
    set_target_properties(fsdp_cudnn PROPERTIES INSTALL_RPATH $ORIGIN INSTALL_RPATH_USE_LINK_PATH ON)
    install(TARGETS fsdp_cudnn LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endif()
