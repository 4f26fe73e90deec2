// The one `try` of a program under MPI: who prints an error, and how the whole job ends with one exit code.
#pragma once

#include <functional>

#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_session.hpp"

namespace fsdp {

/// Starts MPI, runs `body` on every rank and returns its value. On an exception:
///   CollectiveError  one rank prints "fsdp-x: [rank 2 on node7: ]<message>"; after a barrier all return the same code.
///   any other        the rank that has it prints the same with rank and host and ends the job: 2 for a UserError, else 1.
int run_mpi_program(int argc, char** argv,
                    const std::function<int(MpiSession& session, Communicator& world, int argc, char** argv)>& body);

}  // namespace fsdp
