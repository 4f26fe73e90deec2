#include "comm/mpi_session.hpp"

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "comm/mpi/check_mpi.hpp"
#include "comm/mpi/mpi_communicator.hpp"

namespace fsdp {

MpiSession::MpiSession(int& argc, char**& argv) : uncaught_at_start_(std::uncaught_exceptions()) {
  int level = MPI_THREAD_SINGLE;
  FSDP_CHECK_MPI(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level));
  expect(level >= MPI_THREAD_FUNNELED, "MPI lets the main thread of a program with several threads communicate");
  FSDP_CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  FSDP_CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  FSDP_CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  FSDP_CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size_));
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() == uncaught_at_start_) MPI_Finalize();
}

std::unique_ptr<Communicator> MpiSession::world(std::size_t piece_bytes) {
  MPI_Comm world = MPI_COMM_NULL;
  FSDP_CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &world));
  return std::make_unique<MpiCommunicator>(world, piece_bytes);
}

std::string MpiSession::host() const {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  FSDP_CHECK_MPI(MPI_Get_processor_name(name, &length));
  return std::string(name, static_cast<std::size_t>(length));
}

void MpiSession::abort_job(int code) noexcept {
  std::fflush(nullptr);
  if (size_ == 1) {
    // Nobody else is to be ended, and MPI_Abort would print a paragraph under our message.
    MPI_Finalize();
  } else {
    MPI_Abort(MPI_COMM_WORLD, code);
  }
  std::_Exit(code);
}

std::string MpiSession::library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  FSDP_CHECK_MPI(MPI_Get_library_version(text, &length));
  const std::string_view version(text, static_cast<std::size_t>(length));
  // Open MPI counts the final NUL.
  return std::string(version.substr(0, version.find_first_of(std::string_view("\n\0", 2))));
}

}  // namespace fsdp
