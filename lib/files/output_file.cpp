#include "files/output_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"

namespace fsdp {

namespace {

constexpr std::size_t piece_bytes = std::size_t{16} << 20;
constexpr std::size_t direct_from = std::size_t{1} << 20;   // smallest write with O_DIRECT
constexpr std::size_t direct_bytes = std::size_t{4} << 20;  // largest write with O_DIRECT
constexpr std::size_t direct_alignment = 4096;              // of memory, offset and length; no file system requires more

int open_output(const std::filesystem::path& path, OutputFile::Open how) {
  const bool create = how == OutputFile::Open::create;
  const std::string what = (create ? "create " : "open ") + path.string();
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (create ? O_CREAT | O_EXCL : 0), 0666);
  check_errno(fd >= 0, what);
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  if (known && S_ISREG(info.st_mode) && (create || (is_ours(info) && info.st_nlink == 1))) return fd;
  ::close(fd);
  throw CallError(what, !known                   ? "it cannot be accessed"
                        : !S_ISREG(info.st_mode) ? "it is not a plain file"
                        : !is_ours(info)         ? "it belongs to another user"
                                                 : "it has another name, too (a hard link)");
}

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> all;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    all.push_back(entry->path());
  if (error) throw CallError("read folder " + folder.string(), error.message());
  return all;
}

}  // namespace

bool is_ours(const struct stat& info) {
  if (info.st_uid == ::geteuid()) return true;
  return (info.st_mode & (S_IWGRP | S_IWOTH)) == S_IWGRP && (info.st_gid == ::getegid() || ::group_member(info.st_gid) != 0);
}

OutputFile::OutputFile(std::filesystem::path path, Open open)
    : path_(std::move(path)), fd_(open_output(path_, open)), direct_piece_(nullptr, std::free) {
  const off_t end = ::lseek(fd_, 0, SEEK_END);
  size_ = end > 0 ? static_cast<std::uint64_t>(end) : 0;
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (direct_fd_ >= 0) ::close(direct_fd_);
}

void OutputFile::write(std::uint64_t offset, const void* data, std::size_t bytes) {
  size_ = std::max(size_, offset + bytes);
  const char* from = static_cast<const char*>(data);
  const auto advance = [&](std::size_t n) { from += n, offset += n, bytes -= n; };
  if (bytes >= direct_from && !direct_refused_) {  // O_DIRECT requires whole blocks
    const std::size_t head = (direct_alignment - offset % direct_alignment) % direct_alignment;
    write_cached(offset, from, head);
    advance(head);
    advance(write_direct(offset, from, bytes - bytes % direct_alignment));
  }
  write_cached(offset, from, bytes);
}

void OutputFile::write_cached(std::uint64_t offset, const char* from, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, from, std::min(bytes, piece_bytes), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    check_errno(n >= 0,
                format("write {} at byte {}, {} left", path_.string(), offset, format_bytes(static_cast<double>(bytes))));
    // Makes the disk write this piece while the next one is copied, instead of at fsync(). The call is only a hint, so errors
    // are ignored.
    if (n >= ssize_t{1} << 20) ::sync_file_range(fd_, static_cast<off_t>(offset), n, SYNC_FILE_RANGE_WRITE);
    from += n, offset += static_cast<std::uint64_t>(n), bytes -= static_cast<std::size_t>(n);
  }
}

/// Returns the number of bytes written. It is less than `bytes` if the file system refuses O_DIRECT or is full. The caller
/// writes the rest by write_cached(), which reports errors.
std::size_t OutputFile::write_direct(std::uint64_t offset, const char* from, std::size_t bytes) {
  if (!direct_piece_) {
    direct_piece_.reset(static_cast<char*>(std::aligned_alloc(direct_alignment, direct_bytes)));
    direct_fd_ = ::open(path_.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    direct_refused_ = !direct_piece_ || direct_fd_ < 0;
  }
  std::size_t done = 0;
  while (done < bytes && !direct_refused_) {
    const std::size_t piece = std::min(direct_bytes, bytes - done);
    std::memcpy(direct_piece_.get(), from + done, piece);
    const ssize_t n = ::pwrite(direct_fd_, direct_piece_.get(), piece, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    direct_refused_ = n != static_cast<ssize_t>(piece);
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return done;
}

void OutputFile::read(std::uint64_t offset, void* out, std::size_t bytes) const {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    const std::string what = format("read {} at byte {}", path_.string(), offset);
    check_errno(n >= 0, what);
    if (n == 0) throw CallError(what, "the file ends there");
    to += n, offset += static_cast<std::uint64_t>(n), bytes -= static_cast<std::size_t>(n);
  }
}

void OutputFile::resize(std::uint64_t bytes) {
  if (bytes == size_) return;
  check_errno(::ftruncate(fd_, static_cast<off_t>(bytes)) == 0, format("ftruncate {} to {} bytes", path_.string(), bytes));
  size_ = bytes;
}

void OutputFile::lock() {
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)  // other errors: the file system has no locks
    throw UserError(format(
        "{} is being written by another process (two would damage the file); wait for that process, or give another name",
        path_.string()));
}

void OutputFile::sync() { check_errno(::fsync(fd_) == 0, "fsync " + path_.string()); }

void OutputFile::finish() {
  direct_piece_.reset();
  if (direct_fd_ >= 0) ::close(std::exchange(direct_fd_, -1));
  sync();
  check_errno(::close(std::exchange(fd_, -1)) == 0, "close " + path_.string());
}

void write_text_file_durably(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += temporary_suffix;
  check_errno(::unlink(temporary.c_str()) == 0 || errno == ENOENT, "remove " + temporary.string());
  OutputFile output(temporary);
  try {
    output.write(0, text.data(), text.size());
    output.finish();
    rename_durably(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check_errno(fd >= 0, "open " + folder.string());
  const int result = ::fsync(fd), error = errno;
  ::close(fd);
  errno = error;
  // Some network file systems cannot sync a folder and return EINVAL.
  check_errno(result == 0 || error == EINVAL, "fsync " + folder.string());
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  check_errno(std::rename(from.c_str(), to.c_str()) == 0, format("rename {} to {}", from.string(), to.string()));
  sync_folder(folder_of(to));
}

void require_free_space(const std::filesystem::path& folder, std::uint64_t bytes) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return;  // unknown free space: if the disk is full, writing reports it
  const std::uint64_t free = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  if (free < bytes)
    throw RunError(format("{} has only {} of free space ({} are needed); free some space, or choose another file system",
                          folder.string(), format_bytes(static_cast<double>(free)), format_bytes(static_cast<double>(bytes))));
}

void require_own_file(const std::filesystem::path& path, std::string_view beginning) {
  const auto type = std::filesystem::symlink_status(path).type();
  if (type == std::filesystem::file_type::not_found) return;
  if (type == std::filesystem::file_type::regular && InputFile(path).beginning(beginning.size()) == beginning) return;
  throw UserError(
      format("{} is in the way (the program writes a file of this name, but this is a link or a file of another "
             "program, which is not replaced); move it away",
             path.string()));
}

void require_no_foreign_link(const std::filesystem::path& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode) && info.st_uid != ::geteuid() && info.st_uid != 0)
    throw UserError(
        format("{} is a link that another user has made (it may lead to any of your files); give another name", path.string()));
}

void require_no_link(const std::filesystem::path& folder) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) == 0 && !S_ISDIR(info.st_mode))
    throw UserError(
        format("{} is in the way (the run needs a folder there, but it is a link or no folder); move it away, or choose "
               "another `save folder`",
               folder.string()));
}

std::string why_not_opened(const std::filesystem::path& path, int error) {
  struct stat info {};
  const bool theirs = error == EACCES && ::lstat(path.c_str(), &info) == 0 && info.st_uid != ::geteuid();
  return std::strerror(error) +
         (theirs ? format("; it belongs to another user and has mode {:o}", info.st_mode & 07777) : std::string());
}

bool is_file_at(int fd, const std::filesystem::path& path) {
  struct stat opened {
  }, named{};
  if (::fstat(fd, &opened) != 0) {
    check_errno(errno == ESTALE, "stat " + path.string());  // the file was removed on another node
    return false;
  }
  const bool is_there = ::lstat(path.c_str(), &named) == 0;
  check_errno(is_there || errno == ENOENT || errno == ENOTDIR, "stat " + path.string());
  return is_there && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

bool holds_only_our_files(const std::filesystem::path& folder, const std::function<bool(const std::string& name)>& is_ours) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
  const std::vector<std::filesystem::path> all = entries_of(folder);
  return std::all_of(all.begin(), all.end(), [&](const auto& path) { return is_ours(path.filename().string()); });
}

bool remove_our_files(const std::filesystem::path& folder, const std::function<bool(const std::string& name)>& is_ours) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) {
    check_errno(errno == ENOENT || errno == ENOTDIR, "stat " + folder.string());
    return true;
  }
  if (!S_ISDIR(info.st_mode)) return false;
  for (const std::filesystem::path& path : entries_of(folder))
    if (is_ours(path.filename().string()))
      check_errno(::unlink(path.c_str()) == 0 || errno == ENOENT || errno == EISDIR, "remove " + path.string());
  if (::rmdir(folder.c_str()) == 0) return true;
  check_errno(errno == ENOTEMPTY || errno == EEXIST, "remove " + folder.string());
  return false;
}

}  // namespace fsdp
