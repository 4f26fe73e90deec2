// fsdp-doctor under mpirun: it names missing ranks, and always ends.
#include <boost/test/unit_test.hpp>

#include "jobs/job.hpp"

using namespace fsdp::test;

namespace {

const std::vector<std::string> with_pid_file = {"sh", "-c", "echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec \"$@\"", "sh"};

/// Stops a rank (SIGSTOP) when the checks have reached the save folder, or a file in the folder that they make there.
std::function<void(pid_t)> stop_rank(const fs::path& folder, int rank, const std::string& file = "") {
  return [=](pid_t) {
    const auto is_there = [&] {
      std::error_code gone;
      if (file.empty()) return fs::exists(folder / "saves");
      for (const auto& entry : fs::directory_iterator(folder / "saves", gone))
        if (fs::exists(entry.path() / file, gone)) return true;
      return false;
    };
    for (int i = 0; i < 60000 && !is_there(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    BOOST_TEST_REQUIRE(is_there());
    pid_t process = 0;
    std::ifstream(folder / ("pid." + std::to_string(rank))) >> process;
    BOOST_TEST_REQUIRE(process > 0);
    BOOST_TEST(::kill(process, SIGSTOP) == 0);
  };
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_rank_that_does_not_come_is_named) {
  const auto folder = fresh_folder();
  const std::vector<std::string> words = split("--device cpu --save-dir saves --collective-timeout 2s");
  const Outcome outcome = run(folder, mpirun(3, "fsdp-doctor", words, with_pid_file), stop_rank(folder, 1));
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("  ok       MPI "));
    BOOST_TEST(outcome.says("  failed   "));
    BOOST_TEST(outcome.times_said("rank 1 on ") == 1u);
    BOOST_TEST(outcome.says(" has not arrived within 2.0 s"));
    BOOST_TEST(outcome.says("The checks after this one were skipped.\n1 failed"));
  }
}

BOOST_AUTO_TEST_CASE(so_is_the_rank_that_prints) {
  const auto folder = fresh_folder();
  const std::vector<std::string> words = split("--device cpu --save-dir saves --collective-timeout 2s");
  const Outcome outcome = run(folder, mpirun(3, "fsdp-doctor", words, with_pid_file), stop_rank(folder, 0));
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("fsdp-doctor: rank 1 on "));
    BOOST_TEST(outcome.says("rank 0 on "));
  }
}

BOOST_AUTO_TEST_CASE(so_is_a_rank_that_stops_while_files_are_measured) {
  const auto folder = fresh_folder();
  const std::vector<std::string> words = split("--device cpu --save-dir saves --collective-timeout 2s");
  // The file exists once compute has been checked.
  const Outcome outcome = run(folder, mpirun(3, "fsdp-doctor", words, with_pid_file), stop_rank(folder, 1, "rank-0"));
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("  ok       compute "));
    BOOST_TEST(outcome.times_said("rank 1 on ") == 1u);
    BOOST_TEST(outcome.says(" has not arrived within 2.0 s"));
  }
}

BOOST_AUTO_TEST_CASE(nothing_fails_at_any_number_of_ranks) {
  for (const int np : {1, 3}) {
    const auto folder = fresh_folder();
    const Outcome outcome = run(folder, mpirun(np, "fsdp-doctor", split("--device cpu --threads 1 --json")));
    BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
    const json report = json::parse(outcome.output);
    BOOST_TEST(report["ranks"] == np);
    BOOST_TEST(report["failed"] == 0);
    std::vector<std::string> names;
    for (const json& check : report["checks"]) names.push_back(check["name"]);
    const std::vector<std::string> wanted = {"MPI",     "Slurm",         "software",      "processors",  "GPUs",
                                             "threads", "locked memory", "shared memory", "save folder", "HDF5",
                                             "compute", "files",         "training"};
    BOOST_TEST(names == wanted, boost::test_tools::per_element());
    const json& training = report["checks"].back();
    BOOST_TEST(training["status"] == "ok");
    BOOST_TEST(training["figures"]["losses"].size() == 5u);
    BOOST_TEST(!fs::exists(folder / "checkpoints"));
  }
}

BOOST_AUTO_TEST_CASE(a_save_folder_that_is_none) {
  const auto folder = fresh_folder();
  std::ofstream(folder / "file") << "x";
  const Outcome outcome = run(folder, mpirun(2, "fsdp-doctor", split("--device cpu --save-dir file/saves")));
  BOOST_TEST_CONTEXT(outcome.output) {
    BOOST_TEST(outcome.code == 1);
    BOOST_TEST(outcome.says("  failed   save folder    file/saves cannot be written to (Not a directory)"));
    BOOST_TEST(outcome.says("-> choose a writable folder"));
    BOOST_TEST(outcome.says("  ok       HDF5 "));
    BOOST_TEST(outcome.says("  ok       training "));
  }
}
