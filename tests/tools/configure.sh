#!/usr/bin/env bash
# configure.sh REPOSITORY: what CMake's configuration refuses, and what its last lines say of what it has chosen.
set -euo pipefail
repository=$1
# shellcheck source-path=SCRIPTDIR source=support.sh
source "$(dirname "$(realpath "$0")")/support.sh"

# configure EXPECTED FOLDER ARGUMENTS...: EXPECTED is 0 or 1; the output has each message in one line. Nothing in PATH or the environment leads
# to CUDA.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
export PATH=/usr/bin:/bin
unset CUDACXX CUDAARCHS CUDA_PATH CUDAToolkit_ROOT
configure() {
  local expected=$1 folder=$2 status=0
  shift 2
  cmake -S "$repository" -B "$work/$folder" -G Ninja "$@" >"$work/raw" 2>&1 || status=1
  tr -s ' \n' ' ' <"$work/raw" >"$work/output"
  [[ $status == "$expected" ]] || fail "status $status instead of $expected with: $*"
}

# Options: before anything is looked for. The next configuration of the folder works without the option.
configure 1 one -DFSDP_WITH_CDUA=ON
says "-DFSDP_WITH_CDUA: no part of the build has this option; it has FSDP_WITH_CUDA, FSDP_WITH_NCCL"
configure 1 one -DFSDP_WITH_HIP:BOOL=ON
says "-DFSDP_WITH_HIP: no part"
configure 1 two -DFSDP_WITH_CUDA=maybe
says "FSDP_WITH_CUDA is 'maybe'; it takes one of AUTO, ON, OFF"

# A compiler without std::source_location: clang 14 with the library of g++ 12 is one.
if command -v clang++-14 >/dev/null; then
  configure 1 old -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14
  says "has no std::source_location of C++20); install g++ 11 or newer, or apt-get install clang-16"
fi

# Optional dependencies that are not there: AUTO builds without them and says so, ON fails. The MPI is that of its compiler, and so is the launcher.
mpi=()
if command -v mpicxx.mpich >/dev/null; then mpi=(-DMPI_CXX_COMPILER=/usr/bin/mpicxx.mpich); fi
configure 0 one -DFSDP_WITH_TESTS=off "${mpi[@]}"
if ((${#mpi[@]} > 0)); then says "jobs start with /usr/bin/mpiexec.mpich), "; fi
says "without CUDA (FSDP_WITH_CUDA=AUTO: no nvcc was found that works (tools/install --cuda says how to get it"
says "without NCCL (FSDP_WITH_NCCL=AUTO: only GPUs use it, and this build is without CUDA)"
says "without cuDNN (FSDP_WITH_CUDNN=AUTO: only GPUs use it, and this build is without CUDA)"
says "without the tests (FSDP_WITH_TESTS=OFF)"
configure 1 one -DFSDP_WITH_CUDA=1
says "FSDP_WITH_CUDA=ON, but no nvcc was found that works (tools/install --cuda says how to get it"
configure 1 one -DFSDP_WITH_CUDA=OFF -DFSDP_WITH_NCCL=ON
says "FSDP_WITH_NCCL=ON, but only GPUs use it, and this build is without CUDA; -DFSDP_WITH_NCCL=OFF builds without NCCL"
configure 1 one -DFSDP_WITH_NCCL=AUTO -DFSDP_WITH_TESTS=ON -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON
says "FSDP_WITH_TESTS=ON, but Boost.Test 1.74 or newer was not found"

# An old frontend of cuDNN.
if [[ -n $nvcc ]]; then
  mkdir "$work/frontend"
  printf '#define CUDNN_FRONTEND_%s_VERSION %s\n' MAJOR 1 MINOR 11 PATCH 0 >"$work/frontend/cudnn_frontend_version.h"
  configure 1 cudnn -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES=90 -DFSDP_WITH_NCCL=OFF -DFSDP_WITH_CUDNN=ON \
    -DCUDNN_FRONTEND_INCLUDE_DIR="$work/frontend" -DCUDNN_INCLUDE_DIR="$work" -DCUDNN_LIBRARY="$work/libcudnn.so"
  says "FSDP_WITH_CUDNN=ON, but its frontend in $work/frontend is 1.11.0, and 1.12 or newer is needed; -DFSDP_WITH_CUDNN=OFF builds without cuDNN"
fi

exit $((failures > 0))
