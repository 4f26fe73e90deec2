#include "data/token_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

static_assert(std::endian::native == std::endian::little, "token files are read as they are");

namespace {

using Header = std::array<std::int32_t, 256>;
struct Format {
  std::int32_t magic, version;
  std::size_t token_bytes;
};
constexpr Format narrow_tokens = {20240520, 1, 2}, wide_tokens = {20240801, 7, 4};

/// Closes a file descriptor unless it was closed before.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  /// A write that failed late may show only here.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

/// Writes all of `data`. False with errno set if the system did not take it.
bool write_all(int fd, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, at, std::min<std::size_t>(bytes, 1u << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

namespace {

void write_tokens(const std::filesystem::path& path, const Format& as, const void* tokens, std::size_t count) {
  std::error_code none;
  if (std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none) &&
      !std::filesystem::is_directory(path, none))
    throw UserError(format("cannot write '{}' (it is there and not a plain file); choose another name", path.string()));
  if (!std::in_range<std::int32_t>(count))
    throw UserError(
        format("{} tokens do not fit into one token file (its header counts to 2147483647); split the text", count));
  Header header{};
  header[0] = as.magic;
  header[1] = as.version;
  header[2] = static_cast<std::int32_t>(count);

  const std::filesystem::path temporary = path.string() + format(".tmp-{}", ::getpid());
  Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (file.get() < 0)
    throw UserError(format("cannot write '{}' ({}); give a path in a folder that exists and can be written", path.string(),
                           std::strerror(errno)));
  const bool whole = write_all(file.get(), header.data(), sizeof(header)) &&
                     write_all(file.get(), tokens, count * as.token_bytes) && ::fsync(file.get()) == 0 && file.close() &&
                     ::rename(temporary.c_str(), path.c_str()) == 0;
  if (!whole) {
    const int code = errno;
    ::unlink(temporary.c_str());
    errno = code;
    check_errno(false, "write " + path.string());
  }
  // The new name itself must survive a crash.
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const Descriptor parent(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.get() >= 0) ::fsync(parent.get());
}

}  // namespace

void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens) {
  write_tokens(path, narrow_tokens, tokens.data(), tokens.size());
}
void write_token_file(const std::filesystem::path& path, std::span<const std::uint32_t> tokens) {
  write_tokens(path, wide_tokens, tokens.data(), tokens.size());
}

}  // namespace fsdp
