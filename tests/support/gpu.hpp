// For tests that run on the double of CUDA (cuda_double/), and also on a real GPU if there is one.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/cuda_library.hpp"

namespace fsdp::test {

/// Returns true if FSDP_TEST_ON_GPU is set: then the test uses real GPUs.
inline bool wants_real_gpu() { return std::getenv("FSDP_TEST_ON_GPU") != nullptr; }

/// Returns the number of GPUs. If a test for real GPUs finds fewer than `needed`, it ends here as skipped.
inline int gpus_or_skip(int needed) {
  std::string why;
  const CudaLibrary* const library = find_cuda_library(&why);
  const int count = library ? library->device_count(&why) : 0;
  if (count < needed && wants_real_gpu()) {
    std::printf("skipped: %d GPU%s needed, %d there%s%s\n", needed, needed == 1 ? "" : "s", count, why.empty() ? "" : ": ",
                why.c_str());
    std::fflush(stdout);
    std::_Exit(77);
  }
  return count;
}

/// Returns true if FSDP_NCCL_SHARED_GPU is set: then ranks of NCCL share the first GPU.
inline bool shares_gpu() { return std::getenv("FSDP_NCCL_SHARED_GPU") != nullptr; }

/// Returns the largest number of ranks that a test of NCCL may use: FSDP_TEST_RANKS on a shared GPU, otherwise `most` or the
/// number of real GPUs. If these are fewer than 2, the test ends here as skipped.
inline int ranks_of_nccl(int most) {
  const char* const ranks = std::getenv("FSDP_TEST_RANKS");
  if (shares_gpu()) return ranks ? std::atoi(ranks) : 2;
  return wants_real_gpu() ? std::min(most, gpus_or_skip(2)) : most;
}

}  // namespace fsdp::test
