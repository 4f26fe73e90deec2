// What started this process. A program whose MPI is not its launcher's does not see the other ranks: each becomes a job of one
// rank, and all of them do the whole work into the same folder.
#pragma once

#include <functional>
#include <string>

namespace fsdp {

/// How many ranks the launcher has started, by one of the variables that it gives to each of them.
struct LaunchedRanks {
  std::string variable;  // empty: no launcher that we know has started this process
  int count = 1;
};

/// `get` is std::getenv, or a test's. Ask before MPI_Init: MPI may set such variables itself.
///
/// The innermost launcher is meant: mpirun inside an srun or a shell of another job hands that one's variables on, and only the
/// variables of its own kind are its own. So, if any of them says 1, it is 1.
LaunchedRanks launched_ranks(const std::function<const char*(const char*)>& get);

/// Throws UserError if the launcher has started more ranks than the one that `library`, this program's MPI, sees.
void require_own_launcher(const LaunchedRanks& launched, int world_size, const std::string& library);

}  // namespace fsdp
