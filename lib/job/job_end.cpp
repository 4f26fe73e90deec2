#include "job/job_end.hpp"

#include <chrono>
#include <cstdlib>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/system.hpp"

namespace fsdp {

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

/// The job's id for Slurm's commands; empty if there is no Slurm job. For a task of a job array, the id is <array job>_<task>,
/// because SLURM_JOB_ID may be the id of the whole array.
std::string job_name() {
  const char *const job = std::getenv("SLURM_JOB_ID"), *const array = std::getenv("SLURM_ARRAY_JOB_ID"),
                    *const task = std::getenv("SLURM_ARRAY_TASK_ID");
  return array && task ? format("{}_{}", array, task) : job ? job : "";
}

struct SlurmsAnswer {
  bool known = false;
  std::optional<double> end_s;  // seconds since 1970; empty: the job has no time limit
};

SlurmsAnswer end_in(const std::string& text) {
  if (text.starts_with("NONE")) return {true, {}};
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  const bool is_number = end != text.c_str() && text.find_first_not_of("\n", end - text.c_str()) == text.npos;
  return is_number && seconds > 0 ? SlurmsAnswer{true, seconds} : SlurmsAnswer{};
}

/// Asks squeue for the end time in seconds since 1970; the user's setting of a time format does not matter.
SlurmsAnswer ask_squeue() {
  const std::optional<ProgramAnswer> squeue =
      ask_program({"env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-o", "%e", "-j", job_name()}, 10);
  return squeue && squeue->exit_code == 0 ? end_in(squeue->text) : SlurmsAnswer{};
}

}  // namespace

JobEnd::JobEnd(double lead_s) : lead_s_(lead_s) {
  if (job_name().empty())
    throw UserError(
        "--stop-before needs the end of the job, which is unknown (this is not a Slurm job: SLURM_JOB_ID is not set); leave it "
        "out, or start the run with sbatch or in salloc");
  SlurmsAnswer answer;
  if (const char* const told = std::getenv("SLURM_JOB_END_TIME")) answer = end_in(told);
  if (!answer.known) answer = ask_squeue();
  if (!answer.known)
    throw UserError(
        format("--stop-before needs the end of the job, which is unknown (squeue does not report on {} when job {} ends); "
               "leave it out, or make squeue work there",
               host_name(), job_name()));
  end_s_ = answer.end_s;
  if (const auto left = seconds_left(); left && *left <= lead_s_)
    throw UserError(format(
        "--stop-before leaves no time to train (the job ends in {}, and the run would stop {} before that); give the job more "
        "time, or --stop-before less",
        format_duration(*left > 0 ? *left : 0), format_duration(lead_s_)));
}

bool JobEnd::is_near() {
  if (!end_s_ || now_s() < *end_s_ - lead_s_) return false;
  if (const SlurmsAnswer answer = ask_squeue(); answer.known) end_s_ = answer.end_s;
  return end_s_ && now_s() >= *end_s_ - lead_s_;
}

std::optional<double> JobEnd::seconds_left() const { return end_s_ ? std::optional(*end_s_ - now_s()) : std::nullopt; }

std::string JobEnd::reason() const {
  const auto left = seconds_left();
  return left && *left > 0 ? format("the job ends in {}", format_duration(*left)) : "the job ends";
}

}  // namespace fsdp
