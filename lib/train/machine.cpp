#include "train/machine.hpp"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/narrow.hpp"

namespace fsdp {

int threads_of_rank(Communicator& node, Stream& stream, int wanted) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(0, sizeof mask, &mask);
  std::vector<std::int64_t> users(CPU_SETSIZE);
  for (std::size_t cpu = 0; cpu < users.size(); ++cpu) users[cpu] = CPU_ISSET(cpu, &mask) ? 1 : 0;
  node.all_reduce(stream, users.data(), users.size());
  if (wanted > 0) return wanted;
  if (const char* value = std::getenv("OMP_NUM_THREADS"); value && std::atoi(value) > 0) return std::atoi(value);
  double cores = 0;
  for (std::size_t cpu = 0; cpu < users.size(); ++cpu)
    if (CPU_ISSET(cpu, &mask)) cores += 1.0 / static_cast<double>(users[cpu]);
  return std::max(1, static_cast<int>(cores + 1e-9));
}

std::size_t process_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

std::size_t max_over_ranks(Communicator& comm, Stream& stream, std::size_t mine) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(comm.size()));
  all[static_cast<std::size_t>(comm.rank())] = narrow<std::int64_t>(mine);
  comm.all_reduce(stream, all.data(), all.size());
  return static_cast<std::size_t>(*std::max_element(all.begin(), all.end()));
}

}  // namespace fsdp
