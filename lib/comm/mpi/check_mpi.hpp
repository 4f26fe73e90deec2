// Turns MPI's return codes into exceptions.
#pragma once

#include <mpi.h>

#include <source_location>

namespace fsdp {

/// Throws CallError with MPI's text for `code` unless it is MPI_SUCCESS. `call` is the source text of the MPI call.
void check_mpi(int code, const char* call, std::source_location where = std::source_location::current());

}  // namespace fsdp

/// Calls check_mpi() with the result and the source text of an MPI call, for example FSDP_CHECK_MPI(MPI_Barrier(comm)).
#define FSDP_CHECK_MPI(...) ::fsdp::check_mpi(__VA_ARGS__, #__VA_ARGS__)
