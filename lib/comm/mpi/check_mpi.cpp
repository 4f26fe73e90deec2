#include "comm/mpi/check_mpi.hpp"

#include <algorithm>
#include <string_view>

#include "base/error.hpp"

namespace fsdp {

void check_mpi(int code, const char* call, std::source_location where) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  std::replace(text, text + length, '\n', ' ');  // MPICH's text has the functions that the error came through, a line each
  throw CallError(call, length > 0 ? std::string_view(text, static_cast<std::size_t>(length)) : "unknown MPI error", where);
}

}  // namespace fsdp
