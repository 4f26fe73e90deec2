// How the job was started: MPI and its launcher, Slurm, and whether all nodes have the same program.
#pragma once

#include <optional>
#include <string>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// `library` is what MPI says of itself, at any length. Ask before MPI starts, as MPI may set such variables itself.
Start how_started(const std::string& library, const Environment& get);

/// The number of this process among those that the launcher has started; 0 if nothing says so.
int launched_rank(const Environment& get);
/// The finding for ranks_stay_alone(). `plugins` is the output of `srun --mpi=list`; none if there is no srun.
Finding judge_alone(const Start& start, const std::optional<std::string>& plugins);

/// `ranks` of each node. `mpirun` is the answer of `mpirun --version`, for a job without a launcher; none: there is no mpirun.
Finding judge_mpi(const Start& start, const std::vector<std::string>& nodes, const std::vector<std::size_t>& ranks,
                  const std::optional<std::string>& mpirun);

struct SlurmFacts {
  std::string job = {};                     // its number; empty: this is no job of Slurm's
  std::size_t nodes = 1, tasks = 1;         // that it has been given
  std::optional<std::string> plugins = {};  // of srun, as `srun --mpi=list` prints them; none: there is no srun
  bool is_over = false;                     // the job has ended, but its variables are still set in this shell
};
Finding judge_slurm(const SlurmFacts& slurm, const Start& start, std::size_t ranks, std::size_t nodes);

std::optional<Finding> check_mpi(DoctorJob& job);
std::optional<Finding> check_slurm(DoctorJob& job);
std::optional<Finding> check_software(DoctorJob& job);

/// What `srun --mpi=list` prints; none if there is no srun that answers.
std::optional<std::string> plugins_of_srun();

}  // namespace fsdp
