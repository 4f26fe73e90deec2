#include "base/system.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/timer.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

/// The number after `key` in a file with lines "key number".
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
  return file >> value ? std::optional(value) : std::nullopt;  // "max" means no limit
}

/// The bytes left below the memory limit of one control group; nullopt if it has no limit.
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

std::optional<ProgramAnswer> ask_program(const std::vector<std::string>& words, double timeout_s) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
#if __GLIBC_PREREQ(2, 34)  // a program that hangs would keep MPI's sockets open
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
#endif
  posix_spawnattr_t own_group;  // so that the processes that the program has started can be killed, too
  posix_spawnattr_init(&own_group);
  posix_spawnattr_setflags(&own_group, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));  // posix_spawnp only reads `word`
  arguments.push_back(nullptr);
  pid_t child = 0;
  const bool runs = ::posix_spawnp(&child, arguments[0], &actions, &own_group, arguments.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&own_group);
  ::close(ends[1]);

  ProgramAnswer answer{};
  bool ended = false;
  WaitTimer timer;
  while (runs && !ended) {
    const double left_s = timeout_s - timer.seconds();
    pollfd readable = {ends[0], POLLIN, 0};
    if (left_s <= 0) break;
    if (::poll(&readable, 1, 1 + static_cast<int>(1e3 * std::min(left_s, 0.5))) <= 0)
      continue;  // no output yet, or a signal arrived
    char piece[512];
    const ssize_t n = ::read(ends[0], piece, sizeof piece);
    ended = n == 0;
    if (n > 0 && answer.text.size() < (1u << 20)) answer.text.append(piece, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  if (!runs) return std::nullopt;
  if (!ended) ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended || !WIFEXITED(status)) return std::nullopt;
  answer.exit_code = WEXITSTATUS(status);
  return answer;
}

std::size_t available_memory_bytes() {
  const auto kibibytes = number_behind("/proc/meminfo", "MemAvailable:");
  std::size_t available = kibibytes ? *kibibytes * 1024 : std::numeric_limits<std::size_t>::max();
  // A line is "0::/path" (cgroup version 2) or "9:memory:/path" (version 1). Every parent group may have a limit, too.
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

void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd)  // open() takes the lowest free number; reads of stdin and writes of stdout still fail
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0) return;
}

void let_waiting_threads_sleep(char** argv) {
  constexpr const char* polls =
      "1000";  // 20 to 50 microseconds: longer than most waits for the slowest thread of a matrix product
  if (std::getenv("GOMP_SPINCOUNT") || std::getenv("OMP_WAIT_POLICY")) return;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  if (failed || program.filename().string().starts_with("ld-")) return;  // started through ld.so, which has other arguments
  setenv("GOMP_SPINCOUNT", polls, 0);
  execv(program.c_str(), argv);  // returns only if it fails; then waiting threads spin, as before
}

double process_age_s() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_ends = line.rfind(')');  // the program's name may contain any character
  if (name_ends == line.npos) return 0;
  std::istringstream fields(line.substr(name_ends + 1));
  std::string field;
  for (int i = 3; i < 22; ++i) fields >> field;
  double ticks = 0;
  timespec now{};
  if (!(fields >> ticks) || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return std::max(0.0, seconds - ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

std::size_t process_peak_bytes(const std::string& process) {
  const auto kibibytes = number_behind("/proc/" + process + "/status", "VmHWM:");
  return kibibytes ? *kibibytes * 1024 : 0;
}

std::size_t allow_open_files(std::size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return count;
  if (limit.rlim_cur >= 2 * count + 256) return limit.rlim_cur;
  const rlim_t before = std::exchange(limit.rlim_cur, std::min<rlim_t>(limit.rlim_max, 2 * count + 256));
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

bool restart_process_peak() {
  ::malloc_trim(0);
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

}  // namespace fsdp
