// The common part of all main() functions: reads options, answers --help and similar requests, catches every exception, prints
// the error, and ends a whole job with one exit code. In error messages, option names replace the quantities that the library
// names in backquotes (see OptionTable::name_options()).
#pragma once

#include <functional>

#include "base/options.hpp"
#include "base/program.hpp"
#include "comm/agree.hpp"
#include "comm/communicator.hpp"
#include "comm/mpi_session.hpp"

namespace fsdp {

/// Prints the exception that is being handled as "PROGRAM: rank 2 on node7: MESSAGE" and ends all processes of the job, with
/// exit code 2 for a UserError that is not a RunError, else 1.
[[noreturn]] void end_job(MpiSession& session, const std::string& program, const Wording& wording = nullptr);

/// Starts MPI, runs `body` on every rank and returns its value. On an exception:
///   CollectiveError  one rank prints "fsdp-x: [rank 2 on node7: ]<message>"; after a barrier all return the same code.
///   any other        the rank that throws it ends the job as end_job() does.
int run_mpi_program(int argc, char** argv,
                    const std::function<int(MpiSession& session, Communicator& world, int argc, char** argv)>& body,
                    const Wording& wording = nullptr);
/// Reads the options of `table`, then runs `body` like the function above; `body` does not run if the options ask for help or
/// similar.
int run_mpi_program(int argc, char** argv, OptionTable& table,
                    const std::function<int(MpiSession& session, Communicator& world)>& body);
/// The same without MPI, for an offline program.
int run_program(int argc, char** argv, OptionTable& table, const std::function<int()>& body);

}  // namespace fsdp
