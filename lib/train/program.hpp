// What the mains of programs have in common: reading options, answering --help and the like, and the one `try`: who prints an
// error, and how a whole job ends with one exit code. In what they print, quantities that the library names are the options
// that set them.
#pragma once

#include <functional>

#include "base/options.hpp"
#include "base/program.hpp"
#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_session.hpp"

namespace fsdp {

/// Prints the exception that is being handled as "PROGRAM: rank 2 on node7: MESSAGE" and ends all processes of the job: with 2
/// for a UserError, else with 1.
[[noreturn]] void end_job(MpiSession& session, const std::string& program, const Wording& wording = nullptr);

/// Starts MPI, runs `body` on every rank and returns its value. On an exception:
///   CollectiveError  one rank prints "fsdp-x: [rank 2 on node7: ]<message>"; after a barrier all return the same code.
///   any other        the rank that has it prints the same with rank and host and ends the job: 2 for a UserError, else 1.
int run_mpi_program(int argc, char** argv,
                    const std::function<int(MpiSession& session, Communicator& world, int argc, char** argv)>& body,
                    const Wording& wording = nullptr);
/// The same, and reads the options of `table` first: `body` runs unless they ask for help or the like.
int run_mpi_program(int argc, char** argv, OptionTable& table,
                    const std::function<int(MpiSession& session, Communicator& world)>& body);
/// An offline program: the same without MPI.
int run_program(int argc, char** argv, OptionTable& table, const std::function<int()>& body);

}  // namespace fsdp
