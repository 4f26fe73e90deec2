#include "train/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"

namespace fsdp {

namespace {

/// One small file per host, since home folders are shared between hosts.
std::filesystem::path note_of_this_host() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache == nullptr && home == nullptr) return {};
  return (cache ? std::filesystem::path(cache) : std::filesystem::path(home) / ".cache") / "fsdp" /
         format("gemm-peak-{}.json", host);
}

}  // namespace

CpuShare share_of_rank(Communicator& node, Stream& stream, std::size_t wanted) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  check_errno(sched_getaffinity(0, sizeof mask, &mask) == 0, "sched_getaffinity");
  std::vector<std::int64_t> users(CPU_SETSIZE);
  for (std::size_t cpu = 0; cpu < users.size(); ++cpu) users[cpu] = CPU_ISSET(cpu, &mask) ? 1 : 0;
  node.all_reduce(stream, users.data(), users.size());
  double cores = 0;
  for (std::size_t cpu = 0; cpu < users.size(); ++cpu)
    if (CPU_ISSET(cpu, &mask)) cores += 1.0 / static_cast<double>(users[cpu]);
  int threads = std::max(1, static_cast<int>(cores + 1e-9));
  if (const char* value = std::getenv("OMP_NUM_THREADS"); value && std::atoi(value) > 0) threads = std::atoi(value);
  if (wanted > 0) threads = narrow<int>(wanted);
  return {threads, std::min(cores, static_cast<double>(threads))};
}

std::optional<double> noted_peak_per_core() {
  std::ifstream file(note_of_this_host());
  const nlohmann::json note = nlohmann::json::parse(file, nullptr, false);
  if (!note.is_object() || !note.contains("flops_per_core") || !note["flops_per_core"].is_number()) return {};
  return note["flops_per_core"].get<double>();
}

void note_peak_per_core(double flops) {
  const std::filesystem::path path = note_of_this_host();
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  std::ofstream(path) << nlohmann::json{{"flops_per_core", flops}}.dump() << "\n";
}

std::size_t process_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

std::size_t available_memory_bytes() {
  const auto number_in = [](const std::filesystem::path& path) -> std::optional<std::size_t> {
    std::ifstream file(path);
    std::size_t value;
    return file >> value ? std::optional(value) : std::nullopt;  // "max" is none
  };
  std::size_t available = std::numeric_limits<std::size_t>::max();
  std::ifstream memory("/proc/meminfo");
  for (std::string line; std::getline(memory, line);)
    if (line.starts_with("MemAvailable:")) available = std::stoull(line.substr(13)) * 1024;
  // Lines "0::/path" (cgroup v2) and "9:memory:/path" (v1); every group above may have a limit, too.
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const bool v2 = line.starts_with("0::"), v1 = line.find(":memory:") != std::string::npos;
    if (!v1 && !v2) continue;
    const std::filesystem::path root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (std::filesystem::path group = line.substr(line.rfind(':') + 1); group.has_relative_path();
         group = group.parent_path()) {
      const std::filesystem::path folder = root / group.relative_path();
      const auto limit = number_in(folder / (v2 ? "memory.max" : "memory.limit_in_bytes"));
      const auto used = number_in(folder / (v2 ? "memory.current" : "memory.usage_in_bytes"));
      if (limit && used) available = std::min(available, *limit - std::min(*used, *limit));
    }
  }
  return available;
}

std::size_t max_over_ranks(Communicator& comm, Stream& stream, std::size_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  all[static_cast<std::size_t>(comm.rank())] = narrow<std::int64_t>(mine);
  comm.all_reduce(stream, all.data(), all.size());
  return static_cast<std::size_t>(*std::max_element(all.begin(), all.end()));
}

}  // namespace fsdp
