// Finds out what started this process. A program that runs under the launcher of another MPI does not see the other ranks: each
// becomes a job of one rank, and all of them do the whole work and write into the same folder.
#pragma once

#include <functional>
#include <string>

namespace fsdp {

/// Returns the value of an environment variable, or null: std::getenv, or a function of a test.
using Environment = std::function<const char*(const char*)>;

/// The number of ranks that the launcher has started, according to a variable that it sets for each of them.
struct LaunchedRanks {
  std::string variable;  // empty: no known launcher has started this process
  int count = 1;
};

/// Call this before MPI_Init, which may set these variables itself.
///
/// Returns the count of the innermost launcher. mpirun inside an srun, or inside a shell of another job, passes on the
/// variables of that outer launcher and sets only its own. So if any variable says 1, the count is 1.
LaunchedRanks launched_ranks(const Environment& get);

/// Returns true if the launcher has started several ranks that MPI cannot connect: MPI_Init would end them with pages of its
/// own messages, or make each one a job of one rank. `library` is MPI's version text; `knows_pmi` says that MPI supports PMI-1
/// or PMI-2, not only PMIx.
bool ranks_stay_alone(const LaunchedRanks& launched, const std::string& library, bool knows_pmi, const Environment& get);

/// Throws UserError if `library`, this program's MPI, sees one rank but the launcher has started more.
void require_own_launcher(const LaunchedRanks& launched, int world_size, const std::string& library);

}  // namespace fsdp
