#include "kernels/cuda/cudnn_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp::kernels {

namespace {

/// The path of libfsdp_cudnn.so in the folder of libfsdp_cuda, which contains this function.
std::string file_of_cudnn_library() {
  if (const char* named = std::getenv("FSDP_CUDNN_LIBRARY"); named && *named) return named;
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&load_cudnn_library), &here) == 0 || !here.dli_fname) return "libfsdp_cudnn.so";
  return std::filesystem::path(here.dli_fname).parent_path() / "libfsdp_cudnn.so";
}

}  // namespace

std::unique_ptr<CudnnAttention> load_cudnn_library() {
  const std::string file = file_of_cudnn_library();
  const auto refuse = [](const std::string& why, const char* advice) {
    throw UserError(format("cuDNN's attention cannot be used ({}); {}", why, advice));
  };
  if (!std::filesystem::exists(file))
    refuse(format("{} does not exist: fsdp was built without cuDNN", file),
           "build fsdp with -DFSDP_WITH_CUDNN=ON (docs/install.md), or give `attention backend` own");
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    refuse(dlerror(),
           "install cuDNN 9 and NVRTC of the CUDA version of this build, add their folders to LD_LIBRARY_PATH if they are not "
           "in the system's, or give `attention backend` own");
  const auto entry = reinterpret_cast<CudnnLibraryEntry>(dlsym(handle, cudnn_library_entry));
  if (!entry || std::string_view(entry()->version) != FSDP_VERSION)
    refuse(format("{} is of another version of fsdp", file),
           "install both libraries of one build, or give `attention backend` own");
  try {
    return entry()->make();
  } catch (const CallError& error) {
    refuse(error.what(), "install a cuDNN 9 that supports this GPU and its driver, or give `attention backend` own");
    throw;
  }
}

}  // namespace fsdp::kernels
