#include "base/batch_job.hpp"

#include <cstdlib>

#include "base/format.hpp"

namespace fsdp {

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

std::string name_of(Scheduler scheduler) {
  switch (scheduler) {
    case Scheduler::slurm:
      return "Slurm";
    case Scheduler::pbs:
      return "PBS";
    case Scheduler::lsf:
      return "LSF";
    case Scheduler::flux:
      return "Flux";
    case Scheduler::none:
      break;
  }
  return "";
}

std::string BatchJob::description() const { return id.empty() ? "" : format("{} job {}", name_of(scheduler), id); }

BatchJob batch_job() {
  if (const std::string id = variable("SLURM_JOB_ID"); !id.empty())
    return {Scheduler::slurm, id, std::atoll(variable("SLURM_RESTART_COUNT").c_str())};
  const std::int64_t restarts = std::atoll(variable("FSDP_STARTS_AGAIN").c_str());
  if (const std::string id = variable("PBS_JOBID"); !id.empty()) return {Scheduler::pbs, id, restarts};
  if (const std::string id = variable("LSB_JOBID"), index = variable("LSB_JOBINDEX"); !id.empty())
    return {Scheduler::lsf, index.empty() || index == "0" ? id : format("{}[{}]", id, index), restarts};
  // In the tasks of `flux run` inside a batch job, FLUX_JOB_ID is the number of that run, which no user knows.
  for (const char* name : {"FLUX_ENCLOSING_ID", "FLUX_JOB_ID"})
    if (const std::string id = variable(name); !id.empty()) return {Scheduler::flux, id, restarts};
  return {};
}

}  // namespace fsdp
