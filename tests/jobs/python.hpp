// Support for tests that compare with Python packages.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "jobs/job.hpp"

namespace fsdp::test {

/// Returns the Python in FSDP_PYTHON, else python3.
inline std::string python() {
  const char* const named = std::getenv("FSDP_PYTHON");
  return named ? named : "python3";
}
/// Returns the path of a script in tests/jobs.
inline std::string script_of_jobs(const std::string& name) { return FSDP_TEST_DATA "/../jobs/" + name; }

/// Runs `script --probe` with this Python. It exits with 77 if packages are missing.
inline Outcome probe_python(const std::string& script) {
  const fs::path folder = fs::temp_directory_path() / ("fsdp-probe-" + std::to_string(getpid()));
  fs::create_directories(folder);
  const Outcome outcome = run(folder, {python(), script, "--probe"});
  fs::remove_all(folder);
  return outcome;
}

/// Skips the test if Python lacks the packages of `script`. If FSDP_PYTHON is set, that Python must exist.
inline void skip_without_python(const std::string& script, const std::string& packages) {
  const Outcome outcome = probe_python(script);
  if (outcome.code == 0) return;
  BOOST_TEST_REQUIRE((outcome.code == 77 || (outcome.code == 127 && !std::getenv("FSDP_PYTHON"))), outcome.output);
  std::printf("skipped: no Python with %s (FSDP_PYTHON=FILE names one)\n", packages.c_str());
  std::fflush(stdout);
  std::exit(77);
}

inline void must(const fs::path& folder, const std::vector<std::string>& command) {
  const Outcome outcome = run(folder, command);
  BOOST_TEST_REQUIRE(outcome.code == 0, outcome.output);
}

}  // namespace fsdp::test
