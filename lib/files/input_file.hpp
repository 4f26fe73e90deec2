// Opening and reading files that this program did not write itself in this run: all of them are opened here. Only plain files
// are opened, so nothing waits for a pipe. A file counts as missing only if the system reports that. Every other failure throws
// CallError, because a file that cannot be read now may be undamaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fsdp {

enum class PathKind { missing, file, folder, other };
/// The kind of file at `path`; follows links. Throws UserError if the folder may not be entered, and CallError if the system
/// fails in another way.
PathKind kind_of(const std::filesystem::path& path);

/// The size of a plain file; nullopt if there is no plain file of this name. Throws CallError if the system cannot look at it.
std::optional<std::uint64_t> size_of_file(const std::filesystem::path& path);

/// A plain file open for reading by position.
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
  const std::filesystem::path& path() const { return path_; }
  /// Reads `bytes` bytes from `offset`. Throws DamagedError if the file ends before them, CallError if the disk fails.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  /// Tells the system that some process will read these bytes soon, so that the disk can start.
  void prefetch(std::uint64_t offset, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  int fd_;
  std::uint64_t size_ = 0;
};

/// The most bytes that our readers accept in a text file, except in the indices of Hugging Face folders.
inline constexpr std::size_t longest_text = std::size_t{16} << 20;
/// Reads a whole text file, without its byte-order mark. Throws what InputFile throws, and UserError if it has more than
/// `most_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes = longest_text);

}  // namespace fsdp
