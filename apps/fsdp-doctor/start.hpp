// Checks of the start of the job: MPI and its launcher, Slurm, and versions of the program and its libraries on all nodes.
#pragma once

#include <optional>
#include <string>

#include "fsdp-doctor/job.hpp"

namespace fsdp {

/// `library` is the text of MPI_Get_library_version(). Call this before MPI starts, because MPI may set the variables of
/// launchers itself.
Start how_started(const std::string& library, const Environment& get);

/// Returns the finding for ranks that MPI does not connect (ranks_stay_alone()). `plugins` is the output of `srun --mpi=list`;
/// empty if there is no srun.
Finding judge_alone(const Start& start, const std::optional<std::string>& plugins);

/// `ranks` has the number of ranks of each node. `mpirun` is the output of `mpirun --version`, for a job without a launcher;
/// empty if there is no mpirun.
Finding judge_mpi(const Start& start, const std::vector<std::string>& nodes, const std::vector<std::size_t>& ranks,
                  const std::optional<std::string>& mpirun);

struct SlurmFacts {
  std::string job = {};                     // the job's number; empty if this is not a Slurm job
  std::size_t nodes = 1, tasks = 1;         // the numbers that are allocated to the job
  std::optional<std::string> plugins = {};  // the output of `srun --mpi=list`; empty if there is no srun
  bool is_over = false;                     // true if the job has ended, although this shell still has its variables
  std::string other_job = {};               // the job of another scheduler, such as "PBS job 12.server"; empty if there is none
};
Finding judge_slurm(const SlurmFacts& slurm, const Start& start, std::size_t ranks, std::size_t nodes);

std::optional<Finding> check_mpi(DoctorJob& job);
std::optional<Finding> check_slurm(DoctorJob& job);
std::optional<Finding> check_software(DoctorJob& job);

/// Returns the output of `srun --mpi=list`; empty if there is no srun, or it does not answer.
std::optional<std::string> plugins_of_srun();

}  // namespace fsdp
