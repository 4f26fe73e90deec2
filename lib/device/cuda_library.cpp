#include "device/cuda_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/format.hpp"

namespace fsdp {

namespace {

/// The path of libfsdp_cuda.so in the folder of libfsdp, which contains this function.
std::string file_beside() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&find_cuda_library), &here) == 0 || !here.dli_fname) return "libfsdp_cuda.so";
  return std::filesystem::path(here.dli_fname).parent_path() / "libfsdp_cuda.so";
}

/// Opens libfsdp_cuda if it is not open yet, and returns the library's handle. On failure returns null and sets *why.
void* open_library(std::string* why) {
  std::string file;
  if (const char* named = std::getenv("FSDP_CUDA_LIBRARY"); named && *named) {
    file = named;
  } else {
    // Without a driver there is no usable GPU. Do not load hundreds of megabytes of CUDA libraries then.
    if (!dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
      *why = format("no driver: {}", dlerror());
      return nullptr;
    }
    file = file_beside();
  }
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) *why = dlerror();
  return handle;
}

}  // namespace

const CudaLibrary* find_cuda_library(std::string* why) {
  const auto entry = reinterpret_cast<CudaLibraryEntry>(cuda_library_function(cuda_library_entry, why));
  if (!entry) return nullptr;
  const CudaLibrary* const library = entry();
  if (std::string_view(library->version) == FSDP_VERSION) return library;
  *why = format("libfsdp_cuda has version {}, but libfsdp has version {}", library->version, FSDP_VERSION);
  return nullptr;
}

int visible_gpus(std::string* why) {
  const CudaLibrary* const library = find_cuda_library(why);
  return library ? library->device_count(why) : 0;
}

void* cuda_library_function(const char* name, std::string* why) {
  void* const handle = open_library(why);
  if (!handle) return nullptr;
  void* const function = dlsym(handle, name);
  if (!function) *why = format("libfsdp_cuda has no function {}", name);
  return function;
}

}  // namespace fsdp
