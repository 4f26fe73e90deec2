#include "comm/nccl/nccl.hpp"

#include "device/cuda_library.hpp"

namespace fsdp {

namespace {

const DeviceLibrary* find_nccl(std::string* why) {
  if (!find_cuda_library(why)) return nullptr;
  const auto entry = reinterpret_cast<NcclLibraryEntry>(cuda_library_function(nccl_library_entry, why));
  if (!entry) *why = "libfsdp_cuda was built without NCCL";
  return entry ? entry() : nullptr;
}

}  // namespace

const DeviceBackend nccl_device_backend = {.name = "NCCL", .device = DeviceKind::cuda, .find = find_nccl};

const Backend nccl_backend = {.name = "nccl",
                              .about = "GPU memory by NCCL, which needs one GPU for each rank; host memory as with auto",
                              .connect = automatic_backend.connect,
                              .staging_bytes = automatic_backend.staging_bytes,
                              .between = automatic_backend.between,
                              .device_backend = &nccl_device_backend,
                              .device_backend_is_required = true};

}  // namespace fsdp
