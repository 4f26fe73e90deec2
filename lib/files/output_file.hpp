// Writing, renaming and removing files durably. Nothing is written through a link, and files are removed only if they have
// names that this program gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct stat;

namespace fsdp {

/// Returns true if this user owns the file, or belongs to its group and that group may write but not everybody.
bool is_ours(const struct stat& info);

/// A file that is being written. Large writes bypass the page cache (O_DIRECT) if the file system allows that: a copy into the
/// cache takes time of a core that trains while a save is running, and memory that others need.
class OutputFile {
 public:
  enum class Open { create, existing };
  /// Throws CallError. `create` fails if the name exists; `existing` fails if the file is a link, has other names (hard links),
  /// is not a plain file or is not ours (is_ours()).
  explicit OutputFile(std::filesystem::path path, Open open = Open::create);
  OutputFile(const OutputFile&) = delete;
  ~OutputFile();

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// write(), read(), resize(), sync() and finish() throw CallError.
  void write(std::uint64_t offset, const void* data, std::size_t bytes);
  /// All of these bytes must be before the end of the file.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  void resize(std::uint64_t bytes);
  /// Throws UserError if another process has locked this file. The lock ends with this object, or with the process.
  void lock();
  /// Waits until all bytes are on the disk.
  void sync();
  /// Waits until all bytes are on the disk, and closes the file.
  void finish();

 private:
  void write_cached(std::uint64_t offset, const char* data, std::size_t bytes);
  std::size_t write_direct(std::uint64_t offset, const char* data, std::size_t bytes);

  std::filesystem::path path_;
  int fd_, direct_fd_ = -1;  // the same file, opened with O_DIRECT
  bool direct_refused_ = false;
  std::unique_ptr<char, void (*)(void*)> direct_piece_;  // aligned copy of the bytes that are written next
  std::uint64_t size_ = 0;
};

/// The folder of a file; "." if the path is only a name.
inline std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}
/// Writes PATH.tmp, waits for the disk, renames the file to PATH, and waits again. Throws CallError.
void write_text_file_durably(const std::filesystem::path& path, std::string_view text);
/// Waits until the folder's entries (names of files) are on the disk. Throws CallError.
void sync_folder(const std::filesystem::path& folder);
/// Renames a file and waits until the new name is on the disk. Throws CallError.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// Throws RunError if the file system of `folder` has fewer than `bytes` free for this user.
void require_free_space(const std::filesystem::path& folder, std::uint64_t bytes);

/// Throws UserError if `path` is a link that another user, other than root, has made. Called before appending to a file.
void require_no_foreign_link(const std::filesystem::path& path);

/// Throws UserError if this path is a link, even to a folder, or exists and is not a folder: files made in it would be written
/// elsewhere.
void require_no_link(const std::filesystem::path& folder);
/// The reason for which a file could not be opened. `error` is errno: "Permission denied; it is another user's, of mode 644".
std::string why_not_opened(const std::filesystem::path& path, int error);

/// Returns true if `path` names the open file `fd`, which may have been moved, removed or replaced. Throws CallError.
bool is_file_at(int fd, const std::filesystem::path& path);

/// Returns true if `folder` is a folder, not a link, and `is_ours` accepts all names in it. remove_our_files() then removes it.
/// Throws CallError.
bool holds_only_our_files(const std::filesystem::path& folder, const std::function<bool(const std::string& name)>& is_ours);
/// Removes the files of a folder that `is_ours` accepts by their names, then the folder if it is empty. A link to a folder is
/// not touched. Returns true if the folder does not exist afterwards, also if it did not exist before. Throws CallError.
bool remove_our_files(const std::filesystem::path& folder, const std::function<bool(const std::string& name)>& is_ours);

}  // namespace fsdp
