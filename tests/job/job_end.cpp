// When a batch job ends, from what the commands of its scheduler print.
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <ctime>

#include "base/batch_job.hpp"
#include "base/error.hpp"
#include "job/job_end.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

namespace fs = std::filesystem;

constexpr double now = 1'700'000'000;

double end_of(Scheduler scheduler, const std::string& answer) {
  const JobEndAnswer end = read_job_end(scheduler, answer, now);
  BOOST_REQUIRE(end.known);
  BOOST_REQUIRE(end.end_s.has_value());
  return *end.end_s;
}
bool has_no_limit(Scheduler scheduler, const std::string& answer) {
  const JobEndAnswer end = read_job_end(scheduler, answer, now);
  return end.known && !end.end_s;
}
bool is_unknown(Scheduler scheduler, const std::string& answer) { return !read_job_end(scheduler, answer, now).known; }

// Printed by qstat -f of OpenPBS 23.06.06; the list of variables is shortened.
const std::string qstat =
    "Job Id: 0.pbs1\n    Job_Name = first\n    Job_Owner = user@pbs1\n    job_state = R\n    queue = workq\n    server = pbs1\n"
    "    ctime = Mon Nov 30 19:07:09 2026\n    exec_host = pbs1/0*2\n    Rerunable = True\n    Resource_List.ncpus = 2\n"
    "    Resource_List.place = scatter\n    Resource_List.select = 1:ncpus=2:mpiprocs=2\n"
    "    Resource_List.walltime = 00:01:20\n    stime = Mon Nov 30 19:07:10 2026\n    substate = 41\n"
    "    Variable_List = PBS_O_HOME=/home/user,PBS_O_LANG=C.UTF-8,\n\tPBS_O_LOGNAME=user,X=1,PBS_O_HOST=pbs1\n"
    "    comment = Job run at Mon Nov 30 at 19:07 on (pbs1:ncpus=2)\n    run_count = 1\n"
    "    Submit_arguments = -v CONFIG=ab,X=1 -l walltime=80 a.pbs\n\n";

double local_time(int hour, int minute, int second) {
  std::tm time = {};
  time.tm_year = 126, time.tm_mon = 10, time.tm_mday = 30, time.tm_hour = hour, time.tm_min = minute, time.tm_sec = second;
  time.tm_isdst = -1;
  return static_cast<double>(std::mktime(&time));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

/// Sets or removes an environment variable until the end of the test.
struct Variable {
  std::string name;
  Variable(const char* name_, const std::string& value) : name(name_) { ::setenv(name_, value.c_str(), 1); }
  Variable(const Variable&) = delete;
  ~Variable() { ::unsetenv(name.c_str()); }
};

}  // namespace

BOOST_AUTO_TEST_CASE(slurm_prints_seconds_since_1970) {
  BOOST_TEST(end_of(Scheduler::slurm, "1700000300\n") == 1'700'000'300);
  BOOST_TEST(has_no_limit(Scheduler::slurm, "NONE\n"));
  for (const char* text :
       {"", "\n", "N/A\n", "0\n", "2026-11-30T19:00:00\n", "slurm_load_jobs error: Invalid job id specified\n"})
    BOOST_TEST(is_unknown(Scheduler::slurm, text), text);
}

BOOST_AUTO_TEST_CASE(pbs_prints_the_start_and_the_limit) {
  BOOST_TEST(end_of(Scheduler::pbs, qstat) == local_time(19, 8, 30));
  BOOST_TEST(end_of(Scheduler::pbs, replaced(qstat, "00:01:20", "100:00:00")) == local_time(19, 7, 10) + 360'000);
  BOOST_TEST(end_of(Scheduler::pbs, replaced(qstat, "    stime", "    start_time")) == local_time(19, 8, 30));  // Torque
  BOOST_TEST(has_no_limit(Scheduler::pbs, replaced(qstat, "    Resource_List.walltime = 00:01:20\n", "")));
  BOOST_TEST(is_unknown(Scheduler::pbs, replaced(qstat, "    stime = Mon Nov 30 19:07:10 2026\n", "")));  // still queued
  BOOST_TEST(is_unknown(Scheduler::pbs, replaced(qstat, "00:01:20", "soon")));
  BOOST_TEST(is_unknown(Scheduler::pbs, replaced(qstat, "00:01:20", "00:-1:20")));
  BOOST_TEST(is_unknown(Scheduler::pbs, replaced(qstat, "Mon Nov 30 19:07:10 2026", "yesterday")));
  BOOST_TEST(is_unknown(Scheduler::pbs, qstat.substr(0, qstat.find("stime") + 14)));
  BOOST_TEST(is_unknown(Scheduler::pbs, "qstat: Unknown Job Id 7.pbs1\n"));
  // A variable of the user is not an attribute of the job.
  BOOST_TEST(is_unknown(Scheduler::pbs, "Job Id: 0.pbs1\n    Variable_List = A=1,\n\tstime = Mon Nov 30 19:07:10 2026\n"));
}

// In the form that the manual of LSF 10.1 describes; no LSF was at hand.
BOOST_AUTO_TEST_CASE(lsf_prints_hours_and_minutes) {
  BOOST_TEST(end_of(Scheduler::lsf, "3:59 L\n") == now + 3 * 3600 + 59 * 60);
  BOOST_TEST(end_of(Scheduler::lsf, " 0:0 L  \n") == now);
  BOOST_TEST(has_no_limit(Scheduler::lsf, "-\n"));
  for (const char* text : {"", "3:59\n", "0:10 E\n", "0:0 X\n", "L\n", "a:b L\n", "-1:00 L\n", "Job <7> is not found\n"})
    BOOST_TEST(is_unknown(Scheduler::lsf, text), text);
}

BOOST_AUTO_TEST_CASE(flux_prints_the_seconds_that_are_left) {
  BOOST_TEST(end_of(Scheduler::flux, "119\n") == now + 119);
  BOOST_TEST(end_of(Scheduler::flux, "0\n") == now);
  BOOST_TEST(has_no_limit(Scheduler::flux, "4294967295\n"));
  for (const char* text : {"", "1.5m\n", "-3\n", "flux-job: lookup: No such file or directory\n"})
    BOOST_TEST(is_unknown(Scheduler::flux, text), text);
}

BOOST_AUTO_TEST_CASE(each_scheduler_names_its_job) {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "FLUX_ENCLOSING_ID"}) ::unsetenv(name);
  BOOST_TEST(batch_job().description() == "");
  const Variable again("FSDP_STARTS_AGAIN", "2"), run("FLUX_JOB_ID", "f2");
  BOOST_TEST(batch_job().description() == "Flux job f2");
  const Variable batch("FLUX_ENCLOSING_ID", "f1");
  BOOST_TEST(batch_job().description() == "Flux job f1");
  const Variable lsf("LSB_JOBID", "7"), index("LSB_JOBINDEX", "0");
  BOOST_TEST(batch_job().description() == "LSF job 7");
  {
    const Variable third("LSB_JOBINDEX", "3");
    BOOST_TEST(batch_job().description() == "LSF job 7[3]");
  }
  const Variable pbs("PBS_JOBID", "12.server");
  BOOST_TEST(batch_job().description() == "PBS job 12.server");
  BOOST_TEST(batch_job().restarts == 2);
  const Variable slurm("SLURM_JOB_ID", "17");
  BOOST_TEST(batch_job().description() == "Slurm job 17");
  BOOST_TEST(batch_job().restarts == 0);
}

BOOST_AUTO_TEST_CASE(a_command_that_does_not_answer_is_named) {
  const TemporaryFolder folder;
  const Variable job("PBS_JOBID", "12.server");
  const std::string path = std::getenv("PATH");
  const auto message = [] { return message_of<UserError>([] { JobEnd(60); }); };
  ::setenv("PATH", folder.path().c_str(), 1);
  const std::string missing = message();
  ::setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
  const auto qstat_is = [&](const std::string& script) {
    write_file(folder.path() / "qstat", "#!/bin/sh\n" + script);
    fs::permissions(folder.path() / "qstat", fs::perms::owner_all);
  };
  qstat_is("echo 'qstat: Unknown Job Id 12.server'; exit 153");
  const std::string refused = message();
  qstat_is("echo Job Id: 12.server; echo '    job_state = Q'");
  const std::string unknown = message();
  qstat_is(
      "[ \"$*\" = '-f 12.server' ] && echo Job Id: 12.server && date '+    stime = %a %b %e %H:%M:%S %Y' && echo "
      "'    Resource_List.walltime = 01:00:00'");
  const double left = JobEnd(60).seconds_left().value_or(0);
  const bool is_near = JobEnd(60).is_near();
  ::setenv("PATH", path.c_str(), 1);
  CHECK_CONTAINS(missing, "qstat does not report on ");
  CHECK_CONTAINS(missing, "when PBS job 12.server ends: it did not answer within 10.0 s, or is not there");
  CHECK_CONTAINS(refused, "it ended with 153 and printed 'qstat: Unknown Job Id 12.server'");
  CHECK_CONTAINS(unknown, "it ended with 0 and printed 'Job Id: 12.server");
  BOOST_TEST(left > 3580);
  BOOST_TEST(left < 3601);
  BOOST_TEST(!is_near);
}
