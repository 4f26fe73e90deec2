// N logical ranks as N threads of one process, for tests and for programs of one rank.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.hpp"

namespace fsdp {

/// Runs `body` once per rank, each on a thread of its own with its own communicator, and returns when all are done. If some rank
/// throws, the others' collectives throw too, and the first exception of the lowest failing rank is rethrown here.
void run_ranks(int size, const std::function<void(Communicator&)>& body);

/// A group of one.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace fsdp
