// Logical ranks as threads of one process, for tests and for programs of one rank.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.hpp"

namespace fsdp {

/// Runs `body` once per rank, each on its own thread with its own communicator, and returns when all are done. If a rank
/// throws, the others' collectives throw GroupAborted, and this function rethrows the exception of the lowest rank that failed
/// by itself. `ranks_per_node` consecutive ranks count as one node for split_by_node(); 0: all ranks.
void run_ranks(int size, const std::function<void(Communicator&)>& body, int ranks_per_node = 0);

/// Returns a group of one rank.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace fsdp
