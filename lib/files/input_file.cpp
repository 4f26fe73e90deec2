#include "files/input_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/byte_order_mark.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "files/checksum.hpp"
#include "files/output_file.hpp"

namespace fsdp {

namespace {

/// Returns true if an error of open(2) is caused by the path, and not by the disk or the machine.
bool is_of_the_path(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
    case EISDIR:
    case ENXIO:  // a socket, or a device that does not exist
    case ENODEV:
      return true;
    default:
      return false;
  }
}

}  // namespace

PathKind kind_of(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0)
    return S_ISREG(info.st_mode) ? PathKind::file : S_ISDIR(info.st_mode) ? PathKind::folder : PathKind::other;
  if (errno == EACCES && path.has_parent_path())
    throw UserError(format("{} cannot be accessed (its folder: {}); make the folder readable, or give another path",
                           path.string(), why_not_opened(path.parent_path(), errno)));
  check_errno(errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG, "stat " + path.string());
  return PathKind::missing;
}

std::optional<std::uint64_t> size_of_file(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0)
    return S_ISREG(info.st_mode) ? std::optional(static_cast<std::uint64_t>(info.st_size)) : std::nullopt;
  check_errno(errno == ENOENT || errno == ENOTDIR, "stat " + path.string());
  return std::nullopt;
}

InputFile::InputFile(const std::filesystem::path& path)
    : path_(path),
      fd_(::open(
          path.c_str(),
          O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {  // with O_NONBLOCK, opening a pipe does not wait for its writer
  if (fd_ < 0 && is_of_the_path(errno))
    throw UserError(format("{} cannot be opened ({}); check the path", path.string(), std::strerror(errno)));
  if (fd_ < 0 && (errno == EMFILE || errno == ENFILE))
    throw RunError(format("{} cannot be opened ({}); allow more open files with ulimit -n, or put the data into fewer files",
                          path.string(), std::strerror(errno)));
  check_errno(fd_ >= 0, "open " + path.string());
  struct stat info {};
  const bool known = ::fstat(fd_, &info) == 0;
  if (known && S_ISREG(info.st_mode)) {
    size_ = static_cast<std::uint64_t>(info.st_size);
    const std::int64_t all[] = {static_cast<std::int64_t>(info.st_ino),
                                info.st_size,
                                info.st_mtim.tv_sec,
                                info.st_mtim.tv_nsec,
                                info.st_ctim.tv_sec,
                                info.st_ctim.tv_nsec};
    identity_ = checksum(all, sizeof all);
    return;
  }
  const int error = errno;
  ::close(fd_);
  errno = error;
  check_errno(known, "stat " + path.string());
  throw UserError(format("{} is not a file (a folder, a pipe or a device); check the path", path.string()));
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_), identity_(other.identity_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::read(std::uint64_t offset, void* out, std::size_t bytes) const {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    check_errno(n >= 0, format("read {} at byte {}", path_.string(), offset));
    if (n == 0) throw DamagedError(format("{} ends before byte {} (it was cut); copy it again", path_.string(), offset));
    to += n, offset += static_cast<std::uint64_t>(n), bytes -= static_cast<std::size_t>(n);
  }
}

std::string InputFile::beginning(std::size_t most) const {
  std::string bytes(std::min<std::uint64_t>(size_, most), '\0');
  read(0, bytes.data(), bytes.size());
  return bytes;
}

void InputFile::prefetch(std::uint64_t offset, std::size_t bytes) const {
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes) {
  const InputFile file(path);
  if (file.size() > most_bytes)
    throw UserError(format("{} has a size of {} (a file of this kind has at most {}); check the path", path.string(),
                           format_bytes(static_cast<double>(file.size())), format_bytes(static_cast<double>(most_bytes))));
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  text.erase(0, byte_order_mark(text));
  return text;
}

}  // namespace fsdp
