// libfsdp_cuda: all that needs CUDA's libraries is in it, and libfsdp loads it when a GPU is asked for. So one libfsdp runs on
// machines with and without CUDA, and a build without CUDA has the same programs.
#pragma once

#include <memory>
#include <string>

#include "device/device.hpp"

namespace fsdp {

/// Of a GPU, in words that users read.
inline constexpr const char* least_compute_capability = "8.0 or later: an A100, an RTX 30 or a newer one";

/// What the library offers.
struct CudaLibrary {
  /// The version of fsdp that it was built with: it shares types with libfsdp.
  const char* version;
  /// How many GPUs this process sees that can be used; where there are none, *why says so in CUDA's words, or names a GPU that
  /// is too old. Throws CallError.
  int (*device_count)(std::string* why);
  /// GPU `index` of those. It becomes the current one of the calling thread, which alone uses the device. Throws CallError.
  std::unique_ptr<Device> (*make_device)(int index);
};

/// Loads the library: the file that the environment variable FSDP_CUDA_LIBRARY names; else, where there is a driver for GPUs,
/// libfsdp_cuda.so beside libfsdp. Null, and *why says the reason, where there is no driver, or where the library cannot be
/// loaded or is of another version. It stays loaded.
const CudaLibrary* find_cuda_library(std::string* why);

/// A function of the library; null, and *why, where the library cannot be loaded or has none of that name.
void* cuda_library_function(const char* name, std::string* why);

/// The function by which the library is entered: it returns what it offers.
using CudaLibraryEntry = const CudaLibrary* (*)();
inline constexpr const char* cuda_library_entry = "fsdp_cuda_library";

}  // namespace fsdp
