// Opening and reading input files. All files that this process has not written itself are opened here. Only plain files are
// opened, so that nothing waits for a pipe. A file counts as missing only if the system reports that it does not exist.
// Failures of the disk or the system throw CallError, because the file itself may be undamaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fsdp {

enum class PathKind { missing, file, folder, other };
/// Returns the kind of file at `path`; follows links. Throws UserError if this user may not enter the folder of `path`, and
/// CallError for any other error of the system.
PathKind kind_of(const std::filesystem::path& path);

/// Returns the size of a plain file; nullopt if there is no plain file at `path`. Throws CallError for any other error of the
/// system.
std::optional<std::uint64_t> size_of_file(const std::filesystem::path& path);

/// A plain file, open for reading at any position.
class InputFile {
 public:
  /// Throws UserError if the file does not exist, is not a plain file or may not be read, RunError if too many files are open,
  /// and CallError for any other reason.
  explicit InputFile(const std::filesystem::path& path);
  InputFile(const InputFile&) = delete;
  InputFile(InputFile&& other) noexcept;
  ~InputFile();
  /// The size that the file had when it was opened.
  std::uint64_t size() const { return size_; }
  /// A checksum of inode, size and times of the last changes, which all nodes of a shared file system see alike.
  std::uint64_t identity() const { return identity_; }
  const std::filesystem::path& path() const { return path_; }
  /// Reads `bytes` bytes from `offset` on. Throws DamagedError if the file is too short, and CallError if the disk fails.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  /// Reads the first `most` bytes, or all if there are fewer.
  std::string beginning(std::size_t most) const;
  /// Asks the system to read these bytes from the disk in advance, because a process will read them soon.
  void prefetch(std::uint64_t offset, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  int fd_;
  std::uint64_t size_ = 0, identity_ = 0;
};

/// The largest text file that this program reads, in bytes, except the indices of Hugging Face folders.
inline constexpr std::size_t longest_text = std::size_t{16} << 20;
/// Reads a whole text file, without its byte-order mark. Throws the errors of InputFile, and UserError if the file has more
/// than `most_bytes` bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes = longest_text);

}  // namespace fsdp
