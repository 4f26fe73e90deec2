#include "base/system.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include <malloc.h>
#include <unistd.h>

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// The number behind `key` in a file of lines "key number".
std::optional<std::size_t> number_behind(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  for (std::size_t value; file >> word; std::getline(file, word))
    if (word == key && file >> value) return value;
  return std::nullopt;
}

std::optional<std::size_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::size_t value;
  return file >> value ? std::optional(value) : std::nullopt;  // "max" is none
}

/// What is left below the limit of one group, if it has one.
std::optional<std::size_t> left_in_group(const fs::path& folder, bool v2) {
  const auto limit = number_in(folder / (v2 ? "memory.max" : "memory.limit_in_bytes"));
  const auto used = number_in(folder / (v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  std::size_t caches = 0;
  for (const char* key : {"inactive_file", "active_file"})
    caches += number_behind(folder / "memory.stat", (v2 ? "" : "total_") + std::string(key)).value_or(0);
  return *limit - std::min(*used - std::min(caches, *used), *limit);
}

}  // namespace

std::string host_name() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return host;
}

std::size_t available_memory_bytes() {
  const auto kibibytes = number_behind("/proc/meminfo", "MemAvailable:");
  std::size_t available = kibibytes ? *kibibytes * 1024 : std::numeric_limits<std::size_t>::max();
  // Lines "0::/path" (version 2) and "9:memory:/path" (version 1); every group above may have a limit, too.
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const bool v2 = line.starts_with("0::"), v1 = line.find(":memory:") != std::string::npos;
    if (!v1 && !v2) continue;
    const fs::path root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (fs::path group = line.substr(line.rfind(':') + 1); group.has_relative_path(); group = group.parent_path())
      if (const auto left = left_in_group(root / group.relative_path(), v2)) available = std::min(available, *left);
  }
  return available;
}

void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

void let_waiting_threads_sleep(char** argv) {
  constexpr const char* polls = "1000";  // 20 to 50 microseconds: longer than most waits of one product for its slowest thread
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed || program.filename().string().starts_with("ld-")) return;  // started by the loader, which takes other arguments
  setenv("GOMP_SPINCOUNT", polls, 0);
  execv(program.c_str(), argv);  // returns if that is not possible: then threads spin
}

std::size_t process_peak_bytes(const std::string& process) {
  const auto kibibytes = number_behind("/proc/" + process + "/status", "VmHWM:");
  return kibibytes ? *kibibytes * 1024 : 0;
}

}  // namespace fsdp
