#include "device/cuda_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/format.hpp"

namespace fsdp {

namespace {

/// The library that lies beside the one with this function.
std::string file_beside() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&find_cuda_library), &here) == 0 || !here.dli_fname) return "libfsdp_cuda.so";
  return std::filesystem::path(here.dli_fname).parent_path() / "libfsdp_cuda.so";
}

void* loaded_library = nullptr;

}  // namespace

const CudaLibrary* find_cuda_library(std::string* why) {
  std::string file;
  if (const char* named = std::getenv("FSDP_CUDA_LIBRARY"); named && *named) {
    file = named;
  } else {
    // Without a driver there is no GPU, and CUDA's libraries are hundreds of megabytes that a run on the CPU does without.
    if (!dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) {
      *why = format("no driver: {}", dlerror());
      return nullptr;
    }
    file = file_beside();
  }
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    *why = dlerror();
    return nullptr;
  }
  const auto entry = reinterpret_cast<CudaLibraryEntry>(dlsym(handle, cuda_library_entry));
  const CudaLibrary* const library = entry ? entry() : nullptr;
  if (!library || std::string_view(library->version) != FSDP_VERSION) {
    *why = format("{} is of {}", file, library ? format("fsdp {}", library->version) : "another kind");
    return nullptr;
  }
  loaded_library = handle;
  return library;
}

void* cuda_library_function(const char* name) { return loaded_library ? dlsym(loaded_library, name) : nullptr; }

}  // namespace fsdp
