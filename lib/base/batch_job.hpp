// The batch job in which this process runs, according to the environment variables of its scheduler.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp {

enum class Scheduler { none, slurm, pbs, lsf, flux };

/// "Slurm", "PBS", "LSF" or "Flux"; empty for none.
std::string name_of(Scheduler scheduler);

struct BatchJob {
  Scheduler scheduler = Scheduler::none;
  std::string id = {};  // as the scheduler's commands take it
  /// How often the scheduler has started this job before. Slurm counts that itself; for other schedulers,
  /// slurm/other-schedulers.sh sets FSDP_STARTS_AGAIN.
  std::int64_t restarts = 0;

  /// "PBS job 12.server"; empty if this is no batch job.
  std::string description() const;
};

/// Reads SLURM_JOB_ID, PBS_JOBID, LSB_JOBID with LSB_JOBINDEX, and FLUX_ENCLOSING_ID or FLUX_JOB_ID; the first one that is set
/// counts. A Flux instance inside a Slurm job is therefore part of the Slurm job.
BatchJob batch_job();

}  // namespace fsdp
