// Work that may crash or never end, tried in a process of its own first.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace fsdp {

struct ChildLimits {
  double seconds = 10;                       // of computing; of waiting, six times as much
  std::size_t bytes = std::size_t{1} << 30;  // beyond what this process has
};

/// Runs `work` in a copy of this process and waits for it. Returns what ended that before `work` had returned or thrown, as in
/// "it was ended by signal 11, Segmentation fault"; empty if nothing did. What `work` changes is lost with its process. Other
/// threads do not run there: `work` must not wait for what they hold. Throws CallError if there can be no other process.
/// Within such a copy, nothing is copied again: `work` runs there, and what it changes stays.
std::string what_ends(const std::function<void()>& work, const ChildLimits& limits = {});

}  // namespace fsdp
