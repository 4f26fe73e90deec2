// Writing, renaming and removing files durably, that is, so that the change survives a crash of the machine. Nothing is written
// through a symbolic link, and only files with names that this program uses are removed.
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

/// Returns true if this user owns the file, or if the file's group may write to it, other users may not, and this user belongs
/// to the group.
bool is_ours(const struct stat& info);

/// A file that is being written. Large writes bypass the page cache (O_DIRECT) if the file system allows that, because copies
/// into the cache take memory, and they take time from cores that run the training step during a save.
class OutputFile {
 public:
  enum class Open { create, existing };
  /// Throws CallError. `create` fails if the path exists. `existing` fails if the file is a symbolic link, has other hard
  /// links, is not a plain file, or if is_ours() is false.
  explicit OutputFile(std::filesystem::path path, Open open = Open::create);
  OutputFile(const OutputFile&) = delete;
  ~OutputFile();

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// write(), read(), resize(), sync() and finish() throw CallError.
  void write(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Reads bytes back, all of which must be before the end of the file.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  void resize(std::uint64_t bytes);
  /// Locks the file until this object is destroyed or the process ends. Throws UserError if another process has locked it.
  void lock();
  /// Waits until all bytes are on the disk.
  void sync();
  /// Waits until all bytes are on the disk, and closes the file.
  void finish();

 private:
  void write_cached(std::uint64_t offset, const char* data, std::size_t bytes);
  std::size_t write_direct(std::uint64_t offset, const char* data, std::size_t bytes);

  std::filesystem::path path_;
  int fd_, direct_fd_ = -1;  // direct_fd_: the same file, opened with O_DIRECT
  bool direct_refused_ = false;
  std::unique_ptr<char, void (*)(void*)> direct_piece_;  // an aligned copy of the bytes that are written next
  std::uint64_t size_ = 0;
};

/// Returns the folder of a file, or "." if the path is only a name.
inline std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}
/// The end of the names of files that are not complete yet. Files that end so are replaced and removed without a question, so
/// no other program should use it.
inline constexpr const char* temporary_suffix = ".fsdp-tmp";
/// Writes PATH with temporary_suffix, waits for the disk, renames it to PATH, and waits again. So PATH always has its old or
/// its new text. Throws CallError.
void write_text_file_durably(const std::filesystem::path& path, std::string_view text);
/// Waits until the folder's entries (names of files) are on the disk. Throws CallError.
void sync_folder(const std::filesystem::path& folder);
/// Renames a file and waits until the new name is on the disk. Throws CallError.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// Throws RunError if the file system of `folder` has fewer than `bytes` bytes free for this user.
void require_free_space(const std::filesystem::path& folder, std::uint64_t bytes);

/// Throws UserError if `path` exists and is not a plain file that begins with `beginning`. Called before a file is replaced
/// whose name the user has not given: only files that this program made are replaced.
void require_own_file(const std::filesystem::path& path, std::string_view beginning);
/// Throws UserError if `path` is a symbolic link that was made by another user except root. Called before appending to a file.
void require_no_foreign_link(const std::filesystem::path& path);

/// Throws UserError if `folder` exists and is not a folder, or is a link, even to a folder: files would then be written
/// elsewhere.
void require_no_link(const std::filesystem::path& folder);
/// Returns why a file could not be opened: "Permission denied; it belongs to another user and has mode 644". `error` is errno.
std::string why_not_opened(const std::filesystem::path& path, int error);

/// Returns true if `path` is still the open file `fd`, false if that file was moved, removed or replaced. Throws CallError.
bool is_file_at(int fd, const std::filesystem::path& path);

/// Returns true if `folder` is a folder, not a link, and `is_ours` returns true for all names in it. If so, remove_our_files()
/// removes the whole folder. Throws CallError.
bool holds_only_our_files(const std::filesystem::path& folder, const std::function<bool(const std::string& name)>& is_ours);
/// Removes the files of a folder for whose names `is_ours` returns true, then the folder if it is empty. A link to a folder is
/// not touched. Returns true if the folder does not exist afterwards, also if it did not exist before. Throws CallError.
bool remove_our_files(const std::filesystem::path& folder, const std::function<bool(const std::string& name)>& is_ours);

}  // namespace fsdp
