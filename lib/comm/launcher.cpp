#include "comm/launcher.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <initializer_list>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

struct Variable {
  const char* name;
  bool is_rank;  // true: the number of this process, from 0; false: the number of processes
};

// In this order, these variables are set by: Open MPI's mpirun; mpiexec of MPICH and its derivatives, and srun with PMI-2; any
// srun; PMIx, which sets only the rank of the process, not the number of ranks.
constexpr Variable variables[] = {
    {"OMPI_COMM_WORLD_SIZE", false}, {"PMI_SIZE", false}, {"SLURM_STEP_NUM_TASKS", false}, {"PMIX_RANK", true}};

}  // namespace

LaunchedRanks launched_ranks(const Environment& get) {
  LaunchedRanks most;
  for (const auto& [name, is_rank] : variables) {
    const char* text = get(name);
    // srun with a pseudo terminal starts a shell as a task of its step. The commands that a user types into that shell are not
    // tasks of srun.
    if (text == nullptr || (std::strcmp(name, "SLURM_STEP_NUM_TASKS") == 0 && get("SLURM_PTY_PORT") != nullptr)) continue;
    int value = 0;
    if (std::from_chars(text, text + std::strlen(text), value).ec != std::errc()) continue;
    if (!is_rank && value == 1) return {name, 1};
    if (const int count = is_rank ? value + 1 : value; count > most.count) most = {name, count};
  }
  return most;
}

bool ranks_stay_alone(const LaunchedRanks& launched, const std::string& library, bool knows_pmi, const Environment& get) {
  if (launched.count <= 1) return false;
  const auto any_of = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return get(name) != nullptr; });
  };
  const bool by_pmi = any_of({"PMI_SIZE", "PMI_FD", "PMI_PORT"}), by_pmix = any_of({"PMIX_NAMESPACE"});
  if (!library.starts_with("Open MPI")) return !by_pmi && !by_pmix;
  return !by_pmix && !any_of({"PMIX_RANK", "OMPI_COMM_WORLD_SIZE"}) && !(by_pmi && knows_pmi);
}

void require_own_launcher(const LaunchedRanks& launched, int world_size, const std::string& library) {
  if (world_size > 1 || launched.count <= world_size) return;
  throw UserError(
      format("the ranks do not see each other (the launcher has started at least {} ranks according to {}, but this program's "
             "MPI, {}, sees one: the launcher belongs to another MPI, or srun has no plugin for this MPI); start the program "
             "with the mpirun of its MPI, or under Slurm with srun --mpi=pmix; for a job of one rank, unset {}",
             launched.count, launched.variable, library, launched.variable));
}

}  // namespace fsdp
