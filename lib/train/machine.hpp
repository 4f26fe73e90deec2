// What this process may use of its machine, and what it has used.
#pragma once

#include <cstddef>

#include "comm/communicator.hpp"

namespace fsdp {

/// Threads for this rank: `wanted` if not 0, else OMP_NUM_THREADS if that is set, else this rank's part of the cores that it may run on
/// (a core that n ranks may use counts 1/n). At least 1. Collective over the ranks of a node.
int threads_of_rank(Communicator& node, Stream& stream, int wanted);

/// VmHWM: the most memory that this process has had resident, in bytes.
std::size_t process_peak_bytes();

/// The largest of all ranks' values. Collective.
std::size_t max_over_ranks(Communicator& comm, Stream& stream, std::size_t mine);

}  // namespace fsdp
