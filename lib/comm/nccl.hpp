// NCCL, as far as it can be named without its header: the collectives of GPUs, one rank for each. libfsdp_cuda has it
// (comm/nccl/), where it was built with NCCL; libfsdp finds it there.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "comm/communicator.hpp"

namespace fsdp {

struct NcclOptions {
  SumOrder sum_order = SumOrder::canonical;
  double timeout_s = 600;  // how long a rank is waited for; 0: for ever
};

/// What the communicators of a job share: the one of all ranks, from which they are made, and the watch over what they do.
class NcclGroups {
 public:
  virtual ~NcclGroups() = default;
  /// The collectives of the ranks of `group`, over a communicator of their own; a group for each axis and stream, as the
  /// collectives of one communicator are done one after another. `group` and this outlive it. Collective over all ranks of the
  /// job, each of which gives a group of its own.
  virtual std::unique_ptr<Collectives> make(Communicator& group) = 0;
};

/// What each communicator of ours takes of a GPU's memory, for sums in canonical order. How much is best was never measured.
inline constexpr std::size_t nccl_staging = std::size_t{16} << 20;
/// The same of all communicators that a rank has on a mesh of shard x replicate ranks.
std::size_t nccl_staging_bytes(int shard, int replicate);

/// What libfsdp_cuda offers.
struct NcclLibrary {
  /// "2.28.9"
  std::string (*version)();
  /// Connects the ranks of `world`, whose devices are `device`, a GPU for each. Both outlive the result. Collective; throws on
  /// all ranks or on none.
  std::unique_ptr<NcclGroups> (*connect)(Communicator& world, Device& device, const NcclOptions& options);
};

/// Null, and *why says the reason, where libfsdp_cuda is not there or was built without NCCL.
const NcclLibrary* find_nccl(std::string* why);

/// The function of libfsdp_cuda that returns what it offers.
using NcclLibraryEntry = const NcclLibrary* (*)();
inline constexpr const char* nccl_library_entry = "fsdp_nccl_library";

}  // namespace fsdp
