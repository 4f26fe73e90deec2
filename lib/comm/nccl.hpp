// The interface to NCCL that needs none of its headers: collectives of GPUs, one GPU per rank. The implementation (comm/nccl/)
// is in libfsdp_cuda, if that was built with NCCL; libfsdp finds it there.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "comm/communicator.hpp"

namespace fsdp {

struct NcclOptions {
  SumOrder sum_order = SumOrder::canonical;
  double timeout_s = 600;  // the longest wait for a rank; 0: no limit
};

/// What the communicators of a job share: the communicator of all ranks, from which the others are split, and the watchdog over
/// collectives in progress.
class NcclGroups {
 public:
  virtual ~NcclGroups() = default;
  /// Returns the collectives of the ranks of `group`, over a new communicator. Each axis and each stream needs its own, because
  /// the collectives of one communicator run one after another. `group` and this object must outlive the result. Collective
  /// over all ranks of the job; each rank passes the group that it belongs to.
  virtual std::unique_ptr<Collectives> make(Communicator& group) = 0;
};

/// The GPU memory that each communicator uses for sums in canonical order. The best size was never measured.
inline constexpr std::size_t nccl_staging = std::size_t{16} << 20;
/// The GPU memory of all communicators that a rank has on a mesh of shard x replicate ranks.
std::size_t nccl_staging_bytes(int shard, int replicate);

/// The functions that libfsdp_cuda offers.
struct NcclLibrary {
  /// "2.28.9"
  std::string (*version)();
  /// Connects the ranks of `world`; `device` is this rank's GPU, which no other rank uses. Both must outlive the result.
  /// Collective; throws on all ranks or on none.
  std::unique_ptr<NcclGroups> (*connect)(Communicator& world, Device& device, const NcclOptions& options);
};

/// Returns null and sets *why if libfsdp_cuda is missing or was built without NCCL.
const NcclLibrary* find_nccl(std::string* why);

/// The function of libfsdp_cuda that returns its NcclLibrary.
using NcclLibraryEntry = const NcclLibrary* (*)();
inline constexpr const char* nccl_library_entry = "fsdp_nccl_library";

}  // namespace fsdp
