// Collectives of processes that share a node, by reading each other's memory.
//
// A reduction is each rank adding up its own share straight from all ranks' buffers; a gather is each rank copying the others'
// shares from their owners' buffers. Buffers that did not come from allocate() on every rank go through a staging area, in
// pieces. Small ones always do: that takes one barrier instead of two.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace fsdp {

struct ShmOptions {
  double timeout_s = 0;          // for a rank that others wait for; 0: for ever
  std::string host;              // for messages
  std::vector<int> world_ranks;  // by rank, for messages
};

/// The same ranks as a group that shares memory. `comm` may be anything that connects processes of one machine, and is used by
/// this call only. Throws SharedMemoryUnavailable (meeting_place.hpp), on all ranks or on none. Collective over comm.
std::unique_ptr<Communicator> share_memory(Communicator& comm, const ShmOptions& options);

}  // namespace fsdp
