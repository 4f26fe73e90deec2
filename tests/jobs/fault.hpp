// Starts programs with tests/support/faults.cpp: one of their calls fails or kills them.
#pragma once

#include <string>
#include <vector>

#include "jobs/job.hpp"

namespace fsdp::test {

inline const std::string all_calls = "create,write,sync,rename,remove,mkdir";
inline const std::string writing_calls = "create,write,sync,rename,mkdir";

/// The settings of tests/support/faults.cpp.
struct Fault {
  std::string calls = all_calls, what = "kill";
  long at = 0, times = 1;
  int rank = -1;          // negative: every rank
  std::string name = "";  // the fault applies only to paths that end with it; empty: to all
};

/// Returns the words that start a program with this fault for paths below a save folder. The counted calls are logged
/// to `calls` in `folder`.
inline std::vector<std::string> with(const Fault& fault, const fs::path& folder, const std::string& save_dir) {
  fs::remove(folder / "calls");
  return {"env",
          "LD_PRELOAD=" FSDP_FAULTS,
          "ASAN_OPTIONS=verify_asan_link_order=0",
          "FSDP_FAULT_BELOW=" + (fs::canonical(folder) / save_dir).string(),
          "FSDP_FAULT_LOG=" + (folder / "calls").string(),
          "FSDP_FAULT_CALLS=" + fault.calls,
          "FSDP_FAULT_DO=" + fault.what,
          "FSDP_FAULT_AT=" + std::to_string(fault.at),
          "FSDP_FAULT_TIMES=" + std::to_string(fault.times),
          "FSDP_FAULT_NAME=" + fault.name,
          "FSDP_FAULT_RANK=" + (fault.rank < 0 ? "" : std::to_string(fault.rank))};
}

}  // namespace fsdp::test
