// Detects which launcher (mpirun, srun) started this process. If the launcher belongs to another MPI than the program, each
// process becomes a job of one rank: every process then does the whole work, and all write into the same folder.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace fsdp {

/// A function that returns the value of an environment variable, or null if the variable is not set. It is std::getenv, except
/// in tests.
using Environment = std::function<const char*(const char*)>;

/// The number of ranks that the launcher has started, according to an environment variable that the launcher sets.
struct LaunchedRanks {
  std::string variable;  // the variable's name; empty: no known launcher
  int count = 1;
};

/// Returns the number of ranks that the innermost launcher has started. Call this before MPI_Init, which may itself set the
/// environment variables of a launcher.
///
/// If mpirun runs inside srun, or inside a shell of another job, its processes also inherit the variables of the outer
/// launcher. So if any of the variables gives 1 process, the count is 1.
LaunchedRanks launched_ranks(const Environment& get);

/// The name of the innermost launcher: "mpirun of Open MPI", "srun with PMIx 4.2.2"; empty if there is none.
std::string launcher_name(const Environment& get);

/// Returns the rank that the launcher has given to this process in an environment variable; 0 if there is none.
int launched_rank(const Environment& get);

/// What srun's option that chooses the MPI takes for this MPI (its version text), if both have their usual modules: "pmix",
/// "pmi2", or "cray_shasta" for Cray MPICH.
std::string srun_plugin(const std::string& library);

/// Returns true if the launcher has started several ranks that MPI cannot connect. MPI_Init would then end these ranks with
/// pages of its own messages, or make each rank a job of its own. `library` is MPI's version text; `has_client` is
/// MpiSession::has_client().
bool ranks_stay_alone(const LaunchedRanks& launched, const std::string& library, bool has_client, const Environment& get);

/// Throws CollectiveError if the launcher has started several ranks, but MPI (version `library`) has connected only one. Its
/// speaker is a rank of the launcher.
void require_own_launcher(const LaunchedRanks& launched, int world_size, const std::string& library, const Environment& get);

/// Throws CollectiveError if not all ranks run the same version of the program. Both vectors have an entry for each rank, and
/// are the same on all ranks: the name of its host, and version_string().
void require_one_program(const std::vector<std::string>& hosts, const std::vector<std::string>& versions);

}  // namespace fsdp
