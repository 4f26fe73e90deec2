#include "comm/nccl.hpp"

#include "device/cuda_library.hpp"

namespace fsdp {

const NcclLibrary* find_nccl(std::string* why) {
  if (!find_cuda_library(why)) return nullptr;
  const auto entry = reinterpret_cast<NcclLibraryEntry>(cuda_library_function(nccl_library_entry, why));
  if (!entry) *why = "libfsdp_cuda was built without NCCL";
  return entry ? entry() : nullptr;
}

/// The shard axis has one communicator for gathers and one for reductions. An axis of one rank needs none.
std::size_t nccl_staging_bytes(int shard, int replicate) {
  const std::size_t communicators = (shard > 1 ? 2u : 0u) + (replicate > 1 ? 1u : 0u) + (shard * replicate > 1 ? 1u : 0u);
  return communicators * nccl_staging;
}

}  // namespace fsdp
