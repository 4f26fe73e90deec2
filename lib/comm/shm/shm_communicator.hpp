// Collectives of processes that share a node: each rank reads the other ranks' memory.
//
// In a reduction, each rank adds up its own share from the buffers of all ranks. In a gather, each rank copies the other shares
// from the buffers of their owners. For this, buffers must be in shared memory, which allocate() returns; data in other buffers
// is first copied to a staging area, piece by piece. Small data is always staged, because that takes one barrier instead of
// two.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace fsdp {

struct ShmOptions {
  double timeout_s = 0;          // the longest wait for a rank; 0: no limit
  std::string host;              // for messages
  std::vector<int> world_ranks;  // by rank, for messages
};

/// Returns a group of the same ranks that communicates through shared memory. `comm` may be any group of processes of one
/// machine; it is used only during this call. Throws SharedMemoryUnavailable (meeting_place.hpp), on all ranks or on none.
/// Collective over comm.
std::unique_ptr<Communicator> share_memory(Communicator& comm, const ShmOptions& options);

}  // namespace fsdp
