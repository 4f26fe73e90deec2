// The one `try` of a program under MPI: who prints an error, and how the whole job ends with one exit code.
#pragma once

#include <functional>
#include <string>

#include "base/error.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_session.hpp"

namespace fsdp {

/// A failure that all ranks know of and throw at the same place, with the same message. One rank prints it, the job ends in good order.
struct CollectiveError : UserError {
  CollectiveError(const std::string& message, int speaker_rank, bool everywhere, int code)
      : UserError(message), speaker(speaker_rank), all(everywhere), exit_code(code) {}
  int speaker;    // the lowest rank that failed itself: it prints
  bool all;       // every rank failed: rank and host say nothing
  int exit_code;  // 2 if the speaker met a UserError, else 1
};

/// Runs `step` on this rank and agrees on its success: if it threw on any rank, every rank throws CollectiveError with the message of the
/// lowest such rank. For whatever may fail on some ranks only: reading files, allocating. `step` itself must not communicate over `comm`.
/// Collective over comm.
void agree(Communicator& comm, const std::function<void()>& step);

/// Starts MPI, runs `body` on every rank and returns its value. On an exception:
///   CollectiveError  one rank prints "fsdp-x: [rank 2 on node7: ]<message>"; after a barrier all return the same code.
///   any other        the rank that has it prints the same with rank and host and ends the job: 2 for a UserError, else 1.
int run_mpi_program(int argc, char** argv,
                    const std::function<int(MpiSession& session, Communicator& world, int argc, char** argv)>& body);

}  // namespace fsdp
