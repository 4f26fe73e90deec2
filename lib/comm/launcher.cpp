#include "comm/launcher.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
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

std::string launcher_name(const Environment& get) {
  const auto text = [&](const char* name) { return std::string(get(name) ? get(name) : ""); };
  if (get("OMPI_COMM_WORLD_SIZE")) return "mpirun of Open MPI";  // checked first, because mpirun passes on srun's variables
  if (get("HYDI_CONTROL_FD")) return "mpirun of MPICH or Intel MPI";
  if (get("PALS_RANKID")) return "mpiexec of PALS";
  if (get("FLUX_TASK_RANK")) return "flux run";
  if (text("PMIX_NAMESPACE").starts_with("slurm.pmix"))
    return "srun with PMIx" + (get("PMIX_VERSION") ? " " + text("PMIX_VERSION") : "");
  if (get("SLURM_STEP_NUM_TASKS") && !get("SLURM_PTY_PORT")) return get("PMI_SIZE") ? "srun with PMI2" : "srun without PMI";
  if (get("PMI_SIZE")) return "mpirun of MPICH or Intel MPI";
  return get("PMIX_NAMESPACE") ? "a launcher with PMIx" : "";
}

int launched_rank(const Environment& get) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* const value = get(name)) return std::atoi(value);
  return 0;
}

std::string srun_plugin(const std::string& library) {
  if (library.find("CRAY MPICH") != std::string::npos) return "cray_shasta";
  return library.starts_with("Open MPI") ? "pmix" : "pmi2";
}

bool ranks_stay_alone(const LaunchedRanks& launched, const std::string& library, bool has_client, const Environment& get) {
  if (launched.count <= 1) return false;
  const auto any_of = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return get(name) != nullptr; });
  };
  const bool by_pmi = any_of({"PMI_SIZE", "PMI_FD", "PMI_PORT"});
  if (!library.starts_with("Open MPI")) return !by_pmi && !has_client;
  return !any_of({"PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE"}) && !(by_pmi && has_client && !get("HYDI_CONTROL_FD"));
}

void require_own_launcher(const LaunchedRanks& launched, int world_size, const std::string& library, const Environment& get) {
  if (world_size > 1 || launched.count <= world_size) return;
  const std::string name = launcher_name(get), mpi = library.substr(0, library.find_first_of(",\n"));
  throw CollectiveError(
      format(
          "the ranks do not see each other ({} has started at least {} ranks according to {}, but cannot connect those of "
          "{}, this program's MPI); start the program with mpirun of {}, or under Slurm with srun --mpi={}; for a job of one "
          "rank, unset {}",
          name.empty() ? "a launcher" : name, launched.count, launched.variable, mpi, mpi, srun_plugin(library),
          launched.variable),
      /*speaker_rank=*/0, /*everywhere=*/true, /*code=*/2);
}

void require_one_program(const std::vector<std::string>& hosts, const std::vector<std::string>& versions) {
  for (std::size_t r = 1; r < versions.size(); ++r)
    if (versions[r] != versions[0])
      throw CollectiveError(
          format(
              "rank {} on {} runs fsdp {}, and rank 0 on {} runs fsdp {} (all ranks need the same program); check PATH and the "
              "installation on each node",
              r, hosts[r], versions[r], hosts[0], versions[0]),
          /*speaker_rank=*/0, /*everywhere=*/true, /*code=*/2);
}

}  // namespace fsdp
