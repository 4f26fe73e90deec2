// libfsdp_cuda contains all code that needs CUDA's libraries. libfsdp loads it when a GPU is requested, so that the same
// libfsdp and programs run on machines with and without CUDA.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.hpp"

namespace fsdp {

/// The required compute capability of a GPU, for messages.
inline constexpr const char* least_compute_capability = "8.0 or later: an A100, an RTX 30 or a newer one";

/// The functions of libfsdp_cuda.
struct CudaLibrary {
  /// The version of fsdp with which libfsdp_cuda was built. libfsdp must have the same version, because the two share types.
  const char* version;
  /// Returns the number of usable GPUs that this process sees. If there is no usable GPU, sets *why to CUDA's error message, or
  /// to a message that names a GPU that is too old. Throws CallError.
  int (*device_count)(std::string* why);
  /// Makes the device for usable GPU number `index` and sets that GPU as the current one of the calling thread. Only that
  /// thread may use the device. Throws CallError.
  std::unique_ptr<Device> (*make_device)(int index);
  /// Device::place() of all usable GPUs, without making the devices. Throws CallError.
  std::vector<std::string> (*places)();
};

/// Loads libfsdp_cuda from the file that the environment variable FSDP_CUDA_LIBRARY names. If the variable is not set and a GPU
/// driver is installed, loads libfsdp_cuda.so from the folder of libfsdp. Returns null and sets *why if there is no driver, or
/// if the library cannot be loaded or has another version. The library stays loaded.
const CudaLibrary* find_cuda_library(std::string* why);

/// The number of usable GPUs that this process sees. If it is 0, sets *why as find_cuda_library() and device_count() do. Throws
/// CallError.
int visible_gpus(std::string* why);

/// Returns a function of libfsdp_cuda by its name. Returns null and sets *why if the library cannot be loaded or has no such
/// function.
void* cuda_library_function(const char* name, std::string* why);

/// The type and the name of libfsdp_cuda's entry function, which returns its functions.
using CudaLibraryEntry = const CudaLibrary* (*)();
inline constexpr const char* cuda_library_entry = "fsdp_cuda_library";

}  // namespace fsdp
