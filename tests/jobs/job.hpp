// Runs the programs like a user, under mpirun, and reads their output.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <boost/test/results_collector.hpp>
#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

namespace fsdp::test {

using nlohmann::json;
namespace fs = std::filesystem;

struct Outcome {
  int code = -1;       // exit code of the launcher
  std::string output;  // stderr, then stdout, because mpirun mixes parts of their lines if both are the same file
  bool says(std::string_view text) const { return output.find(text) != std::string::npos; }
  /// Without the list at the end of a run, which repeats its warnings.
  std::size_t times_said(std::string_view text) const {
    const std::string_view before = std::string_view(output).substr(0, output.find("warnings of this run:"));
    std::size_t n = 0;
    for (std::size_t at = before.find(text); at != before.npos; at = before.find(text, at + 1)) ++n;
    return n;
  }
};

/// The folder of this process's test cases. It is removed at the end, unless one of them failed.
inline fs::path folder_of_jobs() { return fs::temp_directory_path() / ("fsdp-jobs-" + std::to_string(getpid())); }

struct RemoveFoldersOfPassed {
  void teardown() {
    namespace boost_test = boost::unit_test;
    std::error_code ignored;
    if (boost_test::results_collector.results(boost_test::framework::master_test_suite().p_id).passed())
      fs::remove_all(folder_of_jobs(), ignored);
  }
};
BOOST_TEST_GLOBAL_FIXTURE(RemoveFoldersOfPassed);

/// A separate, empty folder for each test case.
inline fs::path fresh_folder() {
  const fs::path folder = folder_of_jobs() / boost::unit_test::framework::current_test_case().p_name.get();
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

/// Starts `command` (words) in `folder`, calls `meanwhile` with its process id, and waits for its end.
inline Outcome run(const fs::path& folder, const std::vector<std::string>& command,
                   const std::function<void(pid_t)>& meanwhile = {}) {
  const fs::path logs[] = {folder / "errors.txt", folder / "output.txt"};
  std::fflush(nullptr);  // otherwise the child also writes what is buffered
  const pid_t child = fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    if (chdir(folder.c_str()) != 0 || !std::freopen(logs[0].c_str(), "w", stderr) ||
        !std::freopen(logs[1].c_str(), "w", stdout))
      _exit(126);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execvp(words[0], words.data());
    _exit(127);
  }
  if (meanwhile) meanwhile(child);
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  Outcome outcome = {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), {}};
  for (const fs::path& log : logs) {
    std::ifstream file(log);
    outcome.output.append(std::istreambuf_iterator<char>(file), {});
  }
  return outcome;
}

/// Splits a command line without quotes into words.
inline std::vector<std::string> split(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// Returns the launcher's words for `np` ranks, then the words `before` the program, the program and its arguments.
inline std::vector<std::string> mpirun(int np, const std::string& program, const std::vector<std::string>& arguments,
                                       const std::vector<std::string>& before = {}) {
  // tools/gpu-check sets these variables to run the tests on another machine than the one that built them.
  const char *const launcher = std::getenv("FSDP_TEST_MPIRUN"), *const bin = std::getenv("FSDP_TEST_BIN");
  std::vector<std::string> command = split(launcher && *launcher ? launcher : FSDP_MPIRUN);
  command.insert(command.end(), {"-np", std::to_string(np)});
  command.insert(command.end(), before.begin(), before.end());
  command.push_back(std::string(bin && *bin ? bin : FSDP_BIN) + "/" + program);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

/// Returns the lines of a metrics file: all of them, or those of one type.
inline std::vector<json> metrics(const fs::path& file, const std::string& type = "") {
  std::vector<json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const json parsed = json::parse(line, nullptr, false);
    if (!parsed.is_discarded() && (type.empty() || parsed["type"] == type)) lines.push_back(parsed);
  }
  return lines;
}

/// Waits until `done` returns true, at most a minute.
inline void wait_until(const std::function<bool()>& done) {
  for (int i = 0; i < 1200 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

}  // namespace fsdp::test
