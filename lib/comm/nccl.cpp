#include "comm/nccl.hpp"

#include "device/cuda_library.hpp"

namespace fsdp {

const NcclLibrary* find_nccl(std::string* why) {
  if (!find_cuda_library(why)) return nullptr;
  const auto entry = reinterpret_cast<NcclLibraryEntry>(cuda_library_function(nccl_library_entry, why));
  if (!entry) *why = "libfsdp_cuda was built without NCCL";
  return entry ? entry() : nullptr;
}

}  // namespace fsdp
