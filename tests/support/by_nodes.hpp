// Makes a group that communicates by nodes from any communicator.
#pragma once

#include <memory>
#include <utility>

#include "comm/nodes/nodes_communicator.hpp"

namespace fsdp::test {

/// Makes a group of the ranks of `comm` in which each `of_each` consecutive ranks simulate a node. Collective over comm.
inline std::unique_ptr<NodesCommunicator> by_nodes(Communicator& comm, int of_each) {
  auto flat = comm.split(0, comm.rank());
  auto near = flat->split(comm.rank() / of_each, comm.rank());
  auto far = flat->split(comm.rank() % of_each, comm.rank());
  return std::make_unique<NodesCommunicator>(std::move(flat), std::move(near), std::move(far), 60);
}

}  // namespace fsdp::test
