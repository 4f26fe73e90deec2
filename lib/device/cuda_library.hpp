// libfsdp_cuda contains all code that needs CUDA's libraries. libfsdp loads it when a GPU is requested. So one libfsdp runs on
// machines with and without CUDA, and a build without CUDA has the same programs.
#pragma once

#include <memory>
#include <string>

#include "device/device.hpp"

namespace fsdp {

/// The required compute capability of a GPU, for messages.
inline constexpr const char* least_compute_capability = "8.0 or later: an A100, an RTX 30 or a newer one";

/// The functions of the library.
struct CudaLibrary {
  /// The version of fsdp that the library was built with. It must be that of libfsdp, because they share types.
  const char* version;
  /// Returns the number of usable GPUs that this process sees. If it is 0, *why is CUDA's error message, or names a GPU that is
  /// too old. Throws CallError.
  int (*device_count)(std::string* why);
  /// Makes GPU `index` of those and sets it as the current GPU of the calling thread. Only that thread may use the device.
  /// Throws CallError.
  std::unique_ptr<Device> (*make_device)(int index);
};

/// Loads the library: the file in the environment variable FSDP_CUDA_LIBRARY or, if a GPU driver is installed, libfsdp_cuda.so
/// next to libfsdp. Returns null and sets *why if there is no driver, or if the library cannot be loaded or has another
/// version. The library stays loaded.
const CudaLibrary* find_cuda_library(std::string* why);

/// Returns a function of the library, or null, with *why, if the library cannot be loaded or has no function of that name.
void* cuda_library_function(const char* name, std::string* why);

/// The type of the library's entry function, which returns the library's functions.
using CudaLibraryEntry = const CudaLibrary* (*)();
inline constexpr const char* cuda_library_entry = "fsdp_cuda_library";

}  // namespace fsdp
