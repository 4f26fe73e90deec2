// SaveLock: only one run at a time may write to a save folder.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include <boost/test/unit_test.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/save_lock.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

void write_owner(const fs::path& folder, const std::string& host, long process, const std::string& job) {
  fs::create_directories(folder);
  std::ofstream(folder / "lock") << format(R"({{"host":"{}","process":{},"slurm_job":"{}","since":1}})", host, process, job);
}

std::string this_host() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return host;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_second_run_is_refused_and_told_by_whom) {
  const TemporaryFolder folder;
  const fs::path saves = folder / "a" / "b";
  {
    const SaveLock lock(saves);
    BOOST_CHECK_THROW(SaveLock(saves, 0), RunError);
    const std::string message = message_of([&] { SaveLock second(saves, 0.2); });
    CHECK_CONTAINS(message, "is in use (process");
    CHECK_CONTAINS(message, std::to_string(getpid()));
    std::ofstream(saves / "something") << "written";
  }
  BOOST_TEST(!fs::exists(saves / "lock"));
  BOOST_TEST(fs::exists(saves / "something"));
  SaveLock again(saves);
}

BOOST_AUTO_TEST_CASE(a_run_that_wrote_nothing_leaves_no_folder) {
  const TemporaryFolder folder;
  { SaveLock lock(folder / "new"); }
  BOOST_TEST(!fs::exists(folder / "new"));
  fs::create_directory(folder / "old");
  { SaveLock lock(folder / "old"); }
  BOOST_TEST(fs::exists(folder / "old"));
}

BOOST_AUTO_TEST_CASE(a_folder_that_was_replaced_is_not_held_any_more) {
  const TemporaryFolder folder;
  const fs::path saves = folder / "saves";
  {
    const SaveLock lock(saves);
    lock.require_held();
    fs::rename(saves, folder / "moved");
    CHECK_CONTAINS(message_of([&] { lock.require_held(); }), "is no longer this run's save folder");
    fs::create_directory(saves);
    CHECK_CONTAINS(message_of([&] { lock.require_held(); }), "resume from the last checkpoint");
    const SaveLock other(saves);
    message_of([&] { lock.require_held(); });
    other.require_held();
  }
  BOOST_TEST(fs::exists(saves));  // not made by a run
  {
    const SaveLock lock(saves);
    fs::remove_all(saves);
    fs::create_directory(saves);
  }
  BOOST_TEST(fs::exists(saves));
}

BOOST_AUTO_TEST_CASE(a_killed_owner_holds_nothing) {
  const TemporaryFolder folder;
  int ready[2];
  BOOST_REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    SaveLock lock(folder.path());
    (void)!write(ready[1], "x", 1);
    for (;;) pause();
  }
  char byte;
  BOOST_REQUIRE(read(ready[0], &byte, 1) == 1);
  BOOST_CHECK_THROW(SaveLock(folder.path(), 0), RunError);
  std::thread killer([&] {  // kills the owner while the next one waits
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  });
  SaveLock taken(folder.path());
  killer.join();
}

BOOST_AUTO_TEST_CASE(files_that_were_left) {
  const TemporaryFolder folder;
  unsetenv("SLURM_JOB_ID");
  write_owner(folder.path(), this_host(), 1, "");
  { SaveLock taken(folder.path()); }  // the file is not locked, so its owner is dead, although a process 1 exists
  write_owner(folder.path(), "elsewhere", 77, "123");
  const std::string message = message_of([&] { SaveLock lock(folder.path()); });
  CHECK_CONTAINS(message, "process 77 on elsewhere, Slurm job 123");
  CHECK_CONTAINS(message, "remove");
  BOOST_TEST(fs::exists(folder / "lock"));
  setenv("SLURM_JOB_ID", "123", 1);
  BOOST_CHECK_THROW(SaveLock(folder.path()), RunError);  // another step of the job
  setenv("SLURM_RESTART_COUNT", "1", 1);
  { SaveLock requeued(folder.path()); }
  unsetenv("SLURM_RESTART_COUNT");
  unsetenv("SLURM_JOB_ID");
  // Jobs of other schedulers.
  const std::string of_pbs = R"({"host":"elsewhere","job":"PBS job 12.server","process":77,"slurm_job":"","slurm_restarts":0})";
  std::ofstream(folder / "lock") << of_pbs;
  CHECK_CONTAINS(message_of([&] { SaveLock lock(folder.path()); }), "process 77 on elsewhere, PBS job 12.server");
  setenv("PBS_JOBID", "12.server", 1);
  BOOST_CHECK_THROW(SaveLock(folder.path()), RunError);
  setenv("FSDP_STARTS_AGAIN", "1", 1);
  {
    SaveLock requeued(folder.path());
    CHECK_CONTAINS(read_file(folder / "lock"), R"("job":"PBS job 12.server")");
  }
  unsetenv("FSDP_STARTS_AGAIN");
  unsetenv("PBS_JOBID");
  for (const char* other :
       {R"({"host":5})", R"({"host":"db","port":5432})", R"({"host":"elsewhere","process":7}x)", "{\"host\":\n"}) {
    std::ofstream(folder / "lock") << other;
    CHECK_CONTAINS(message_of([&] { SaveLock lock(folder.path()); }), "is in the way");
    BOOST_TEST(read_file(folder / "lock") == other);
  }
  std::ofstream(folder / "lock") << "{";  // its owner died while writing
  SaveLock taken(folder.path());
}

// Slurm may start a job again while ranks of its earlier start are running.
BOOST_AUTO_TEST_CASE(an_earlier_start_of_the_same_job_is_asked_to_stop) {
  const TemporaryFolder folder;
  setenv("SLURM_JOB_ID", "123", 1);
  std::optional<SaveLock> earlier(std::in_place, folder.path());
  BOOST_CHECK_THROW(SaveLock(folder.path(), 0.1), RunError);  // another step of the same start does not request a stop
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  BOOST_TEST(!earlier->is_wanted());
  setenv("SLURM_RESTART_COUNT", "1", 1);
  std::string said;
  const EarlierStart given_up = {
      .patience_s = 60, .say = [&](const std::string& text) { said = text; }, .stop = [] { return true; }};
  BOOST_CHECK_THROW(SaveLock(folder.path(), 0, given_up), RunError);
  CHECK_CONTAINS(said, "waiting until an earlier start of this job, process " + std::to_string(getpid()));
  std::thread run([&] {
    while (!earlier->is_wanted()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    earlier.reset();
  });
  {
    SaveLock later(folder.path(), 0, {.patience_s = 60});
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    BOOST_TEST(!later.is_wanted());  // the request was for the earlier start
  }
  run.join();
  unsetenv("SLURM_RESTART_COUNT");
  unsetenv("SLURM_JOB_ID");
}

// A script named squeue simulates Slurm.
BOOST_AUTO_TEST_CASE(a_slurm_job_that_is_over_holds_nothing) {
  const TemporaryFolder folder, programs;
  const fs::path saves = folder / "saves", squeue = programs / "squeue";
  const std::string path = std::getenv("PATH");
  setenv("PATH", (programs.path().string() + ":" + path).c_str(), 1);
  const auto answer = [&](const std::string& script) {
    fs::remove(squeue);
    std::ofstream(squeue) << "#!/bin/sh\n" << script << "\n";
    fs::permissions(squeue, fs::perms::owner_all);
  };
  const auto leave = [&](const std::string& job, const std::string& cluster) {
    fs::create_directories(saves);
    std::ofstream(saves / "lock") << format(
        R"({{"host":"elsewhere","process":77,"slurm_job":"{}","slurm_cluster":"{}","since":1}})", job, cluster);
  };
  const auto is_refused = [&] {
    try {
      const SaveLock lock(saves, 0);
      CHECK_CONTAINS(lock.taken_over(), "Slurm job 123, which made the file, is over");
      return false;
    } catch (const RunError&) {
      return true;
    }
  };
  setenv("SLURM_JOB_ID", "124", 1);
  setenv("SLURM_CLUSTER_NAME", "big", 1);
  leave("123", "big");
  for (const char* runs : {"echo 123 RUNNING", "echo 122 RUNNING; echo 123 COMPLETING", "echo 123 PENDING",
                           "echo cannot reach slurmctld >&2; exit 1", "kill -9 $$"}) {
    answer(runs);
    BOOST_TEST(is_refused(), runs);
  }
  answer("exit 0");
  leave("123", "another");  // squeue does not know the jobs of another cluster
  BOOST_TEST(is_refused());
  leave("123", "");
  BOOST_TEST(is_refused());
  leave("123; exit 0", "big");
  BOOST_TEST(is_refused());
  for (const char* over :
       {"exit 0", "echo 122 RUNNING; echo 1234 RUNNING", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"}) {
    leave("123", "big");
    answer(format("[ \"$*\" = '-h -o %A %T -j 123' ] || exit 3\n{}", over));
    BOOST_TEST(!is_refused(), over);
  }
  setenv("PATH", path.c_str(), 1);
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_CLUSTER_NAME");
}

BOOST_AUTO_TEST_CASE(folders_that_cannot_be) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  for (const fs::path& path : {folder / "file", folder / "file" / "below", fs::path("/proc/none")}) {
    BOOST_CHECK_THROW(SaveLock(path, 0), UserError);
    CHECK_CONTAINS(message_of([&] { SaveLock lock(path); }), "choose another `save folder`");
  }
}
