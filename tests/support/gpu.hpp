// Tests that run on a real GPU where there is one, and on the double of CUDA (cuda_double/) everywhere.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "device/cuda_library.hpp"

namespace fsdp::test {

/// Whether FSDP_TEST_ON_GPU is set: then the test is for real GPUs.
inline bool wants_real_gpu() { return std::getenv("FSDP_TEST_ON_GPU") != nullptr; }

/// How many GPUs there are. A test for real GPUs that lacks one ends here, as skipped: it needs so many.
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

}  // namespace fsdp::test
