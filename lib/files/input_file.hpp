// The door: every file that this program did not write itself in this run is opened here. Only plain files are opened, nothing
// waits for a pipe, and "is not there" is said only where the system says so: whatever else fails ends in CallError, because a
// file that cannot be read now may be whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace fsdp {

enum class PathKind { missing, file, folder, other };
/// What a path names, through links. Throws UserError if its folder may not be entered, and CallError for any other reason why
/// the system cannot tell.
PathKind kind_of(const std::filesystem::path& path);

/// The size of a plain file; nothing if there is none of this name. Throws CallError unless the system can tell.
std::optional<std::uint64_t> size_of_file(const std::filesystem::path& path);

/// A plain file open for reading by position.
class InputFile {
 public:
  /// Throws UserError if it is not there, is no plain file or may not be read; CallError for any other reason.
  explicit InputFile(const std::filesystem::path& path);
  InputFile(const InputFile&) = delete;
  InputFile(InputFile&& other) noexcept;
  ~InputFile();
  /// When it was opened.
  std::uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  /// Exactly `bytes` from `offset`. Throws RunError if the file ends before, CallError if the disk fails.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  /// This will be read soon, by whomever: the disk may begin.
  void prefetch(std::uint64_t offset, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  int fd_;
  std::uint64_t size_ = 0;
};

/// No text that a reader of ours takes is longer, except the indices of Hugging Face folders.
inline constexpr std::size_t longest_text = std::size_t{16} << 20;
/// A whole file, without a byte-order mark. Throws what InputFile throws, and UserError if it has more than `most_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes = longest_text);

}  // namespace fsdp
