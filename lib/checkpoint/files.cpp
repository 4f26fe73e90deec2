#include "checkpoint/files.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "h5/output.hpp"

namespace fsdp {

namespace {
// Large enough to hide the cost of a system call, small enough to stay in the cache between read and checksum.
constexpr std::size_t piece_bytes = std::size_t{1} << 20;
}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) throw UserError(format("{} cannot be opened ({}) check the path", path.string(), std::strerror(errno)));
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw UserError(format("{} is not a file (a folder or a device) check the path", path.string()));
  }
  size_ = static_cast<std::uint64_t>(info.st_size);
}

InputFile::~InputFile() { ::close(fd_); }

void InputFile::read(std::uint64_t offset, void* out, std::size_t bytes) const {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    check_errno(n >= 0, "pread " + path_.string());
    if (n == 0) throw UserError(format("{} ends before byte {} (it was cut) copy it again", path_.string(), offset));
    to += n, offset += static_cast<std::uint64_t>(n), bytes -= static_cast<std::size_t>(n);
  }
}

void InputFile::prefetch(std::uint64_t offset, std::size_t bytes) const {
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

std::uint64_t checksum(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }
std::string checksum_text(std::uint64_t checksum) { return format("{:016x}", checksum); }

namespace {

/// Of bytes that come one after the other.
class RunningSum {
 public:
  RunningSum() { expect(state_ && XXH3_64bits_reset(state_.get()) == XXH_OK, "XXH3 starts"); }
  void add(const void* data, std::size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  /// Bytes [begin, end) of a file.
  void add(const InputFile& file, std::uint64_t begin, std::uint64_t end,
           const std::function<void(std::size_t)>& piece_done = nullptr) {
    piece_.resize(piece_bytes);
    while (begin < end) {
      const std::size_t n = std::min<std::uint64_t>(piece_bytes, end - begin);
      file.read(begin, piece_.data(), n);
      add(piece_.data(), n);
      begin += n;
      if (piece_done) piece_done(n);
    }
  }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_{XXH3_createState(), XXH3_freeState};
  std::vector<char> piece_;
};

}  // namespace

FileSum sum_file(const std::filesystem::path& path, const std::function<void(std::size_t)>& piece_done) {
  const InputFile file(path);
  RunningSum sum;
  sum.add(file, 0, file.size(), piece_done);
  return {file.size(), sum.value()};
}

FileSum sum_file(const std::filesystem::path& path, std::span<const KnownPart> known) {
  const InputFile file(path);
  RunningSum sum;
  std::uint64_t at = 0;
  for (const KnownPart& part : known) {
    expect(part.offset >= at && part.offset + part.bytes.size() <= file.size(), "what is known lies in the file, in order");
    sum.add(file, at, part.offset);
    sum.add(part.bytes.data(), part.bytes.size());
    at = part.offset + part.bytes.size();
  }
  sum.add(file, at, file.size());
  return {file.size(), sum.value()};
}

std::string read_text_file(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

void write_text_file_durably(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  std::filesystem::remove(temporary);
  const auto output = std::make_shared<h5::Output>(temporary.string());
  output->write(0, text.data(), text.size());
  output->finish();
  rename_durably(temporary, path);
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check_errno(fd >= 0, "open " + folder.string());
  const int result = ::fsync(fd), error = errno;
  ::close(fd);
  errno = error;
  // Some network file systems cannot sync a folder, and say so with EINVAL.
  check_errno(result == 0 || error == EINVAL, "fsync " + folder.string());
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  check_errno(std::rename(from.c_str(), to.c_str()) == 0, format("rename {} to {}", from.string(), to.string()));
  sync_folder(to.has_parent_path() ? to.parent_path() : ".");
}

void require_free_space(const std::filesystem::path& folder, std::uint64_t bytes) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return;  // then the writes will tell
  const std::uint64_t free = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  if (free < bytes)
    throw RunError(format("{} has {} free ({} are to be written there) free some space or choose another file system",
                          folder.string(), format_bytes(static_cast<double>(free)), format_bytes(static_cast<double>(bytes))));
}

}  // namespace fsdp
