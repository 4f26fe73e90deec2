// What started this process. A program whose MPI is not its launcher's does not see the other ranks: each becomes a job of one
// rank, and all of them do the whole work into the same folder.
#pragma once

#include <functional>
#include <string>

namespace fsdp {

/// The value of an environment variable, or null: std::getenv, or a test's.
using Environment = std::function<const char*(const char*)>;

/// How many ranks the launcher has started, by one of the variables that it gives to each of them.
struct LaunchedRanks {
  std::string variable;  // empty: no launcher that we know has started this process
  int count = 1;
};

/// Ask before MPI_Init: MPI may set such variables itself.
///
/// The innermost launcher is meant: mpirun inside an srun or a shell of another job hands that one's variables on, and only the
/// variables of its own kind are its own. So, if any of them says 1, it is 1.
LaunchedRanks launched_ranks(const Environment& get);

/// Returns true if the launcher has started several ranks that MPI cannot connect, so that MPI_Init would end them with pages
/// of its own messages, or make each a job of one rank. `library` is MPI's own version text; `knows_pmi`: it has PMI besides
/// PMIx.
bool ranks_stay_alone(const LaunchedRanks& launched, const std::string& library, bool knows_pmi, const Environment& get);

/// Throws UserError if the launcher has started more ranks than the one that `library`, this program's MPI, sees.
void require_own_launcher(const LaunchedRanks& launched, int world_size, const std::string& library);

}  // namespace fsdp
