#include "files/child.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"

namespace fsdp {

namespace {

/// Set in a process that what_ends() has made.
bool is_child = false;

/// The address space of this process.
std::size_t own_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void limit(__rlimit_resource what, std::size_t to) {
  rlimit now{};
  if (::getrlimit(what, &now) != 0) return;
  now.rlim_cur = std::min<rlim_t>(to, now.rlim_max);
  ::setrlimit(what, &now);
}

void come_to_an_end(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {  // which is one, too
  }
}

[[noreturn]] void live_as_child(const std::function<void()>& work, const ChildLimits& limits, std::size_t own, pid_t parent,
                                int said) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);  // it has ended before it could be tied to
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU})
    std::signal(signal, SIG_DFL);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, static_cast<std::size_t>(std::ceil(limits.seconds)));
#if !defined(__SANITIZE_ADDRESS__)  // it takes terabytes of addresses for its shadow
  limit(RLIMIT_AS, own + limits.bytes);
#else
  static_cast<void>(own);
#endif
  is_child = true;
  come_to_an_end(work);
  const char done = 1;
  ::_exit(::write(said, &done, 1) == 1 ? 0 : 1);
}

/// Whether the child says within so many seconds that it is done; nothing if it does not end in that time.
std::optional<bool> wait_for(int said, double seconds) {
  WaitTimer timer;
  for (;;) {
    pollfd one{said, POLLIN, 0};
    const double left = seconds - timer.seconds();
    if (left <= 0) return {};
    const int ready = ::poll(&one, 1, static_cast<int>(std::min(left, 0.5) * 1000) + 1);
    check_errno(ready >= 0 || errno == EINTR, "poll");
    if (ready <= 0) continue;
    char done = 0;
    return ::read(said, &done, 1) == 1;  // nothing comes from one that has died
  }
}

/// Both ends of a pipe.
struct Pipe {
  int ends[2];
  Pipe() { check_errno(::pipe2(ends, O_CLOEXEC) == 0, "pipe"); }
  Pipe(const Pipe&) = delete;
  ~Pipe() {
    ::close(ends[0]);
    close_entry();
  }
  void close_entry() {
    if (ends[1] >= 0) ::close(std::exchange(ends[1], -1));
  }
};

}  // namespace

std::string what_ends(const std::function<void()>& work, const ChildLimits& limits) {
  if (is_child) {
    come_to_an_end(work);
    return "";
  }
  const std::size_t own = own_bytes();
  const pid_t parent = ::getpid();
  Pipe pipe;
  const pid_t child = ::fork();
  check_errno(child >= 0, "fork");
  if (child == 0) live_as_child(work, limits, own, parent, pipe.ends[1]);
  pipe.close_entry();
  const double patience_s = 6 * limits.seconds;
  const std::optional<bool> done = wait_for(pipe.ends[0], patience_s);
  if (!done) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!done) return format("it had not ended after {}", format_duration(patience_s));
  if (*done) return "";
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (signal == SIGXCPU) return format("it had not ended after {} of computing", format_duration(limits.seconds));
  return signal == 0 ? "its process ended" : format("it was ended by signal {}, {}", signal, ::strsignal(signal));
}

}  // namespace fsdp
