// A library for LD_PRELOAD: counts the calls that change or read files below a folder, and makes one of them fail or kill the
// process. So a test chooses a moment inside a save without changes to the programs. It reads these environment variables:
//   FSDP_FAULT_BELOW  the folder, as an absolute path
//   FSDP_FAULT_LOG    gets a line "RANK KIND PATH" for each counted call, with "fault" before KIND for the chosen one, and at
//                     the end "RANK exit CODE"
//   FSDP_FAULT_CALLS  the kinds that count, separated by commas: create, write, sync, rename, remove, mkdir, open, read, stat,
//                     list, execute, reserve
//   FSDP_FAULT_NAME   only calls for paths with this ending count; all if it is not set
//   FSDP_FAULT_RANK   only calls on this rank of Open MPI count; all if it is not set
//   FSDP_FAULT_AT     the number of the chosen call, from 1; 0: none
//   FSDP_FAULT_TIMES  the number of chosen calls from that one on; 1 if it is not set
//   FSDP_FAULT_DO     kill (the process dies instead of making the call, or after half of a write), stop (SIGSTOP before the
//                     call), ask (SIGUSR1 before the call, by which a run saves and stops), ENOSPC, EIO or EROFS (the call
//                     fails), wait (the call is made a tenth of a second later), short (pread or pwrite handles the first half
//                     of the bytes), flip (one bit of what pread or pwrite copies is wrong)
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

std::string setting(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

struct Settings {
  std::string name = setting("FSDP_FAULT_NAME"), below = setting("FSDP_FAULT_BELOW"), log = setting("FSDP_FAULT_LOG"),
              what = setting("FSDP_FAULT_DO");
  std::string calls = "," + setting("FSDP_FAULT_CALLS") + ",", rank = setting("OMPI_COMM_WORLD_RANK");
  bool here = setting("FSDP_FAULT_RANK").empty() || setting("FSDP_FAULT_RANK") == rank;
  long at = std::atol(setting("FSDP_FAULT_AT").c_str());
  long times = setting("FSDP_FAULT_TIMES").empty() ? 1 : std::atol(setting("FSDP_FAULT_TIMES").c_str());
};

const Settings& settings() {
  static const Settings* const all = new Settings;  // never destroyed, because calls come until the process ends
  return *all;
}

void say(const std::string& text) {
  const std::string line = settings().rank + " " + text + "\n";
  const long file = syscall(SYS_openat, AT_FDCWD, settings().log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  static_cast<void>(syscall(SYS_write, file, line.data(), line.size()));
  syscall(SYS_close, file);
}

[[gnu::constructor]] void say_how_it_ends() {
  on_exit([](int code, void*) { say("exit " + std::to_string(code)); }, nullptr);
}

std::string link_of(const std::string& name) {
  char path[4096];
  const ssize_t n = readlink(name.c_str(), path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : "";
}
std::string path_of(int fd) { return link_of("/proc/self/fd/" + std::to_string(fd)); }
std::string path_of(int folder, const char* path) {
  if (*path == '/') return path;
  return (folder == AT_FDCWD ? link_of("/proc/self/cwd") : path_of(folder)) + "/" + path;
}

enum class Fault { none, error, death, half, bit };

/// Counts a call and returns what to do with it. For an error, errno is set.
Fault count(const char* kind, const std::string& path) {
  const Settings& s = settings();
  const std::string& below = s.below;
  // Flight records and the notes of background saves do not count, unless the test names them.
  const bool is_beside = path.find("/flight/") != path.npos || path.ends_with("/flight") || path.find(".written") != path.npos;
  if (s.name.empty() && is_beside) return Fault::none;
  if (below.empty() || path.compare(0, below.size(), below) != 0 || (path.size() > below.size() && path[below.size()] != '/') ||
      s.calls.find("," + std::string(kind) + ",") == std::string::npos ||
      (path.size() >= s.name.size() ? path.compare(path.size() - s.name.size(), s.name.size(), s.name) != 0 : true))
    return Fault::none;
  static std::atomic<long> calls = 0;
  const long number = ++calls;
  const bool due = s.here && s.at > 0 && number >= s.at && number < s.at + s.times;
  const int before = errno;
  say((due ? "fault " : "") + std::string(kind) + " " + path);
  errno = before;
  if (!due) return Fault::none;
  if (s.what == "wait") return usleep(100'000), Fault::none;
  if (s.what == "stop") return raise(SIGSTOP), Fault::none;
  if (s.what == "ask") return ::kill(getpid(), SIGUSR1), Fault::none;
  if (s.what == "kill") return Fault::death;
  if (s.what == "short") return Fault::half;
  if (s.what == "flip") return Fault::bit;
  errno = s.what == "ENOSPC" ? ENOSPC : s.what == "EROFS" ? EROFS : EIO;
  return Fault::error;
}

[[noreturn]] void die() {
  raise(SIGKILL);
  std::abort();
}

/// Makes the call, unless it should fail.
template <class Call>
auto unless_fault(const char* kind, const std::string& path, Call&& call) -> decltype(call()) {
  switch (count(kind, path)) {
    case Fault::error:
      return -1;
    case Fault::death:
      die();
    default:
      return call();
  }
}

/// `read(bytes)` reads the first `bytes` bytes into `out`.
template <class Read>
ssize_t unless_read_fault(int fd, void* out, std::size_t bytes, Read&& read) {
  switch (count("read", path_of(fd))) {
    case Fault::error:
      return -1;
    case Fault::death:
      die();
    case Fault::half:
      return read(bytes > 4096 ? bytes / 2 : bytes);
    case Fault::bit: {
      const ssize_t n = read(bytes);
      if (n > 0) static_cast<char*>(out)[n / 2] ^= 4;
      return n;
    }
    case Fault::none:
      break;
  }
  return read(bytes);
}

/// `write(bytes)` writes only the first `bytes` bytes of `data`.
template <class Write>
ssize_t unless_write_fault(int fd, const void* data, std::size_t bytes, Write&& write) {
  const int before = errno;
  const std::string path = path_of(fd);
  errno = before;
  switch (count("write", path)) {
    case Fault::error:
      return -1;
    case Fault::death:
      write(bytes / 2), die();
    case Fault::half:
      return write(bytes > 4096 ? bytes / 2 : bytes);
    case Fault::bit: {  // what the file gets is wrong, and the program's memory is right
      char& wrong = const_cast<char*>(static_cast<const char*>(data))[bytes / 2];
      wrong ^= 4;
      const ssize_t n = write(bytes);
      wrong ^= 4;
      return n;
    }
    case Fault::none:
      break;
  }
  return write(bytes);
}

/// Returns the function of this name in the next library.
template <class F>
F* next(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

std::size_t bytes_of(const iovec* pieces, int count) {
  std::size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  return bytes;
}

}  // namespace

#define NEXT(name) static auto* const real = next(&::name, #name)

extern "C" {

#define FSDP_OPEN(name)                                                                                              \
  int name(const char* path, int flags, ...) {                                                                       \
    NEXT(name);                                                                                                      \
    va_list rest;                                                                                                    \
    va_start(rest, flags);                                                                                           \
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                                                  \
    va_end(rest);                                                                                                    \
    if (!(flags & O_CREAT)) return unless_fault("open", path_of(AT_FDCWD, path), [&] { return real(path, flags); }); \
    return unless_fault("create", path_of(AT_FDCWD, path), [&] { return real(path, flags, mode); });                 \
  }
FSDP_OPEN(open)
FSDP_OPEN(open64)

#define FSDP_OPENAT(name)                                                                                                  \
  int name(int folder, const char* path, int flags, ...) {                                                                 \
    NEXT(name);                                                                                                            \
    va_list rest;                                                                                                          \
    va_start(rest, flags);                                                                                                 \
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                                                        \
    va_end(rest);                                                                                                          \
    if (!(flags & O_CREAT)) return unless_fault("open", path_of(folder, path), [&] { return real(folder, path, flags); }); \
    return unless_fault("create", path_of(folder, path), [&] { return real(folder, path, flags, mode); });                 \
  }
FSDP_OPENAT(openat)
FSDP_OPENAT(openat64)

ssize_t write(int fd, const void* data, size_t bytes) {
  NEXT(write);
  return unless_write_fault(fd, data, bytes, [&](size_t n) { return real(fd, data, n); });
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  NEXT(pwrite);
  return unless_write_fault(fd, data, bytes, [&](size_t n) { return real(fd, data, n, at); });
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) {
  NEXT(pwrite64);
  return unless_write_fault(fd, data, bytes, [&](size_t n) { return real(fd, data, n, at); });
}
ssize_t writev(int fd, const iovec* pieces, int count) {
  NEXT(writev);
  return unless_write_fault(fd, pieces->iov_base, bytes_of(pieces, count), [&](size_t) { return real(fd, pieces, count); });
}
ssize_t pread(int fd, void* out, size_t bytes, off_t at) {
  NEXT(pread);
  return unless_read_fault(fd, out, bytes, [&](size_t n) { return real(fd, out, n, at); });
}
ssize_t pread64(int fd, void* out, size_t bytes, off64_t at) {
  NEXT(pread64);
  return unless_read_fault(fd, out, bytes, [&](size_t n) { return real(fd, out, n, at); });
}
#define FSDP_STAT(name, status)                                                                        \
  int name(const char* path, struct status* out) noexcept {                                            \
    static auto* const real = next(static_cast<int (*)(const char*, struct status*)>(nullptr), #name); \
    return unless_fault("stat", path_of(AT_FDCWD, path), [&] { return real(path, out); });             \
  }
FSDP_STAT(stat, stat)
FSDP_STAT(lstat, stat)
FSDP_STAT(stat64, stat64)
FSDP_STAT(lstat64, stat64)
dirent* readdir(DIR* folder) {
  NEXT(readdir);
  return count("list", path_of(dirfd(folder))) == Fault::error ? nullptr : real(folder);
}
int ftruncate(int fd, off_t bytes) noexcept {
  NEXT(ftruncate);
  return unless_fault("write", path_of(fd), [&] { return real(fd, bytes); });
}
int ftruncate64(int fd, off64_t bytes) noexcept {
  NEXT(ftruncate64);
  return unless_fault("write", path_of(fd), [&] { return real(fd, bytes); });
}
#define FSDP_FALLOCATE(name, offset)                                                           \
  int name(int fd, int mode, offset begin, offset bytes) {                                     \
    NEXT(name);                                                                                \
    return unless_fault("reserve", path_of(fd), [&] { return real(fd, mode, begin, bytes); }); \
  }
FSDP_FALLOCATE(fallocate, off_t)
FSDP_FALLOCATE(fallocate64, off64_t)
int fsync(int fd) {
  NEXT(fsync);
  return unless_fault("sync", path_of(fd), [&] { return real(fd); });
}
int fdatasync(int fd) {
  NEXT(fdatasync);
  return unless_fault("sync", path_of(fd), [&] { return real(fd); });
}
int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  return unless_fault("rename", path_of(AT_FDCWD, to), [&] { return real(from, to); });
}
int remove(const char* path) noexcept {
  NEXT(remove);
  return unless_fault("remove", path_of(AT_FDCWD, path), [&] { return real(path); });
}
int unlink(const char* path) noexcept {
  NEXT(unlink);
  return unless_fault("remove", path_of(AT_FDCWD, path), [&] { return real(path); });
}
int rmdir(const char* path) noexcept {
  NEXT(rmdir);
  return unless_fault("remove", path_of(AT_FDCWD, path), [&] { return real(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  NEXT(unlinkat);
  return unless_fault("remove", path_of(folder, path), [&] { return real(folder, path, flags); });
}
/// The matrix products of oneDNN and OpenBLAS, which have no path. They are declared here, so that the headers are not needed.
int dnnl_sgemm(char trans_a, char trans_b, long m, long n, long k, float alpha, const float* a, long lda, const float* b,
               long ldb, float beta, float* c, long ldc) {
  NEXT(dnnl_sgemm);
  constexpr int out_of_memory = 1;
  switch (count("product", settings().below)) {
    case Fault::error:
      return out_of_memory;
    case Fault::death:
      die();
    default:
      break;
  }
  return real(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b,
                 int ldb, float beta, float* c, int ldc) {
  NEXT(cblas_sgemm);
  if (count("product", settings().below) == Fault::death) die();  // it returns no errors
  real(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
int mkdir(const char* path, mode_t mode) noexcept {
  NEXT(mkdir);
  return unless_fault("mkdir", path_of(AT_FDCWD, path), [&] { return real(path, mode); });
}

}  // extern "C"
