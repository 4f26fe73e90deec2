// Logical ranks as threads of one process, for tests and for programs of one rank.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.hpp"

namespace fsdp {

/// Runs `body` on `size` threads, one per rank, each with its own communicator, and returns when all have ended. If a rank
/// throws, the collectives of the other ranks throw GroupAborted, and this function rethrows the exception of the lowest rank
/// that threw anything else than GroupAborted. `ranks_per_node` consecutive ranks count as one node in split_by_node(); with
/// 0, all ranks count as one node.
void run_ranks(int size, const std::function<void(Communicator&)>& body, int ranks_per_node = 0);

/// Returns a group of one rank.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace fsdp
