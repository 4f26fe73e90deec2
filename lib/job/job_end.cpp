#include "job/job_end.hpp"

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iomanip>
#include <locale>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/number_in.hpp"
#include "base/system.hpp"

namespace fsdp {

namespace {

constexpr double patience_s = 10;  // the longest wait for a scheduler's command

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

/// Returns nothing if `text` is not a whole number without a sign.
std::optional<double> whole_seconds(std::string_view text) {
  const auto value = number_in<unsigned long long>(text);
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

std::string_view without_spaces(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == text.npos ? std::string_view() : text.substr(first, last - first + 1);
}

/// Reads "H:MM" or "H:MM:SS", as a number of the last unit: minutes or seconds.
std::optional<double> clock_time(std::string_view text) {
  double all = 0;
  for (;;) {
    const std::size_t colon = text.find(':');
    const auto part = whole_seconds(text.substr(0, colon));
    if (!part) return {};
    all = 60 * all + *part;
    if (colon == text.npos) return all;
    text.remove_prefix(colon + 1);
  }
}

JobEndAnswer slurm_end(const std::string& text) {
  if (text.starts_with("NONE")) return {true, {}};
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  const bool is_number = end != text.c_str() && text.find_first_not_of("\n", end - text.c_str()) == text.npos;
  return is_number && seconds > 0 ? JobEndAnswer{true, seconds} : JobEndAnswer{};
}

/// The value of an attribute in the output of qstat -f; empty if there is none. Each attribute has a line of its own, which
/// begins with four spaces; the rest of a long one follows after a tab.
std::string attribute(const std::string& text, const std::string& name) {
  const std::string before = "\n    " + name + " = ";
  const std::size_t at = text.find(before);
  return at == text.npos ? "" : text.substr(at + before.size(), text.find('\n', at + 1) - at - before.size());
}

JobEndAnswer pbs_end(const std::string& text) {
  std::string began = attribute(text, "stime");
  if (began.empty()) began = attribute(text, "start_time");
  std::tm start = {};
  std::istringstream stream(began);
  stream.imbue(std::locale::classic());
  stream >> std::get_time(&start, "%a %b %d %H:%M:%S %Y");
  start.tm_isdst = -1;
  const std::time_t start_s = stream.fail() ? -1 : std::mktime(&start);
  if (start_s < 0) return {};
  const std::string limit = attribute(text, "Resource_List.walltime");
  if (limit.empty()) return {true, {}};
  const auto seconds = clock_time(limit);
  return seconds ? JobEndAnswer{true, static_cast<double>(start_s) + *seconds} : JobEndAnswer{};
}

JobEndAnswer lsf_end(std::string_view text, double now) {
  text = without_spaces(text);
  if (text == "-") return {true, {}};
  if (!text.ends_with(" L")) return {};
  const auto minutes = clock_time(without_spaces(text.substr(0, text.size() - 1)));
  return minutes ? JobEndAnswer{true, now + 60 * *minutes} : JobEndAnswer{};
}

JobEndAnswer flux_end(const std::string& text, double now) {
  const auto seconds = whole_seconds(without_spaces(text));
  if (!seconds) return {};
  return *seconds < 4294967295.0 ? JobEndAnswer{true, now + *seconds} : JobEndAnswer{true, {}};
}

/// The command that reports the end of the job. The user's settings of time formats do not matter.
std::vector<std::string> question(const BatchJob& job) {
  switch (job.scheduler) {
    case Scheduler::pbs:
      return {"qstat", "-f", job.id};
    case Scheduler::lsf:
      return {"bjobs", "-noheader", "-o", "time_left", job.id};
    case Scheduler::flux:
      return {"flux", "job", "timeleft"};  // of the job of this process
    default:
      return {"env", "SLURM_TIME_FORMAT=%s", "squeue", "-h", "-o", "%e", "-j", job.id};
  }
}

/// As batch_job(), but a task of a Slurm array has the name <array job>_<task>: SLURM_JOB_ID may be the id of the whole array.
BatchJob job_of_commands() {
  BatchJob job = batch_job();
  const char *const array = std::getenv("SLURM_ARRAY_JOB_ID"), *const task = std::getenv("SLURM_ARRAY_TASK_ID");
  if (job.scheduler == Scheduler::slurm && array && task) job.id = format("{}_{}", array, task);
  return job;
}

/// Asks the scheduler. If it does not answer, *problem gets the reason.
JobEndAnswer ask(const BatchJob& job, std::string* problem = nullptr) {
  const std::optional<ProgramAnswer> answer = ask_program(question(job), patience_s);
  if (answer && answer->exit_code == 0)
    if (const JobEndAnswer end = read_job_end(job.scheduler, answer->text, now_s()); end.known) return end;
  if (problem)
    *problem = !answer
                   ? format("it did not answer within {}, or is not there", format_duration(patience_s))
                   : format("it ended with {} and printed '{}'", answer->exit_code, excerpt(without_spaces(answer->text), 100));
  return {};
}

}  // namespace

JobEndAnswer read_job_end(Scheduler scheduler, const std::string& answer, double now) {
  switch (scheduler) {
    case Scheduler::slurm:
      return slurm_end(answer);
    case Scheduler::pbs:
      return pbs_end(answer);
    case Scheduler::lsf:
      return lsf_end(answer, now);
    case Scheduler::flux:
      return flux_end(answer, now);
    case Scheduler::none:
      break;
  }
  return {};
}

JobEnd::JobEnd(double lead_s) : lead_s_(lead_s), job_(job_of_commands()) {
  if (job_.id.empty())
    throw UserError(
        "--stop-before needs the end of the job, which is unknown (this is not a Slurm job: SLURM_JOB_ID is not set; nor a job "
        "of PBS, LSF or Flux); leave it out, or start the run in a job of one of them");
  JobEndAnswer answer;
  if (const char* const told = std::getenv("SLURM_JOB_END_TIME"); told && job_.scheduler == Scheduler::slurm)
    answer = slurm_end(told);
  std::string problem;
  if (!answer.known) answer = ask(job_, &problem);
  if (!answer.known) {
    const auto words = question(job_);
    const std::string command = words[0] == "env" ? words[2] : words[0];
    throw UserError(format(
        "--stop-before needs the end of the job, which is unknown ({0} does not report on {1} when {2} ends: {3}); leave "
        "it out, or make {0} work there",
        command, host_name(), job_.description(), problem));
  }
  end_s_ = answer.end_s;
  if (const auto left = seconds_left(); left && *left <= lead_s_)
    throw UserError(format(
        "--stop-before leaves no time to train (the job ends in {}, and the run would stop {} before that); give the job more "
        "time, or --stop-before less",
        format_duration(*left > 0 ? *left : 0), format_duration(lead_s_)));
}

bool JobEnd::is_near() {
  if (!end_s_ || now_s() < *end_s_ - lead_s_) return false;
  if (const JobEndAnswer answer = ask(job_); answer.known) end_s_ = answer.end_s;
  return end_s_ && now_s() >= *end_s_ - lead_s_;
}

std::optional<double> JobEnd::seconds_left() const { return end_s_ ? std::optional(*end_s_ - now_s()) : std::nullopt; }

std::string JobEnd::reason() const {
  const auto left = seconds_left();
  return left && *left > 0 ? format("the job ends in {}", format_duration(*left)) : "the job ends";
}

}  // namespace fsdp
