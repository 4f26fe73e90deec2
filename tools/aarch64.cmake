# Cross-builds for aarch64 on another Debian machine, with Debian's arm64 packages in FSDP_AARCH64_ROOT, and runs programs there with
# qemu-user. FSDP_SBSA_CUDA is a CUDA toolkit with targets/sbsa-linux, for builds with CUDA. tools/aarch64 makes both and uses this file.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(FSDP_AARCH64_ROOT $ENV{FSDP_AARCH64_ROOT} CACHE PATH "Debian's arm64 packages")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FSDP_AARCH64_ROOT)

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc CACHE STRING "")
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++ CACHE STRING "")
set(CMAKE_SYSROOT ${FSDP_AARCH64_ROOT})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${FSDP_AARCH64_ROOT})

# FindMPI asks compiler wrappers, which are programs of the other processor.
set(mpi ${FSDP_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu/openmpi)
set(MPI_CXX_HEADER_DIR ${mpi}/include CACHE PATH "")
set(MPI_CXX_LIB_NAMES mpi CACHE STRING "")
set(MPI_CXX_SKIP_MPICXX ON CACHE BOOL "")
set(MPI_mpi_LIBRARY ${mpi}/lib/libmpi.so CACHE FILEPATH "")
set(MPIEXEC_EXECUTABLE /usr/bin/mpiexec.openmpi CACHE FILEPATH "")
# So does FindHDF5; without an answer it takes these.
set(HDF5_C_COMPILER_EXECUTABLE /bin/false CACHE FILEPATH "")
set(HDF5_C_INCLUDE_DIR ${FSDP_AARCH64_ROOT}/usr/include/hdf5/serial CACHE PATH "")
set(HDF5_hdf5_LIBRARY_RELEASE ${FSDP_AARCH64_ROOT}/usr/lib/aarch64-linux-gnu/libhdf5_serial.so CACHE FILEPATH "")

if(FSDP_SBSA_CUDA)
  list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FSDP_SBSA_CUDA)
  set(CMAKE_CUDA_COMPILER ${FSDP_SBSA_CUDA}/bin/nvcc CACHE FILEPATH "")
  set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++ CACHE STRING "")
  set(CMAKE_CUDA_FLAGS "--target-directory sbsa-linux" CACHE STRING "")  # CMAKE_CUDA_FLAGS_INIT would be lost in lib/find-cuda.cmake
  # FindCUDAToolkit of CMake 3.25 knows only targets/aarch64-linux.
  set(CUDAToolkit_TARGET_DIR ${FSDP_SBSA_CUDA}/targets/sbsa-linux)
  list(APPEND CMAKE_FIND_ROOT_PATH ${CUDAToolkit_TARGET_DIR})
endif()
