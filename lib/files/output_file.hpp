// Files and names that this program makes, and what makes them durable. Nothing is written through a link, and nothing is
// removed but by a name that this program gives.
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

/// A file that is being written. Large writes go past the page cache (O_DIRECT) where the file system allows that: copying
/// into it takes a core that trains while a save goes on, and pages for it, which others need.
class OutputFile {
 public:
  enum class Open { create, existing };
  /// `create` fails if anything has this name; `existing` if it is a link, has other names (hard links), is no plain file or
  /// is not ours(). Throws CallError.
  explicit OutputFile(std::filesystem::path path, Open open = Open::create);
  OutputFile(const OutputFile&) = delete;
  ~OutputFile();

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  /// These throw CallError.
  void write(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Nothing of it may lie beyond the end.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  void resize(std::uint64_t bytes);
  /// Throws UserError if another process has locked this file. The lock ends with this object, or with the process.
  void lock();
  /// Waits until all is on the disk.
  void sync();
  /// Waits until all is on the disk, and closes.
  void finish();

 private:
  void write_cached(std::uint64_t offset, const char* data, std::size_t bytes);
  std::size_t write_direct(std::uint64_t offset, const char* data, std::size_t bytes);

  std::filesystem::path path_;
  int fd_, direct_fd_ = -1;  // the same file
  bool direct_refused_ = false;
  std::unique_ptr<char, void (*)(void*)> direct_piece_;  // what is written from, aligned
  std::uint64_t size_ = 0;
};

/// The folder in which a file is; "." if the path is only a name.
inline std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}
/// Writes under the name PATH.tmp, waits for the disk, renames, waits again. Throws CallError.
void write_text_file_durably(const std::filesystem::path& path, std::string_view text);
/// Waits until the names in this folder are on the disk. Throws CallError.
void sync_folder(const std::filesystem::path& folder);
/// Renames and waits until that is on the disk. Throws CallError.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);
/// Throws RunError if fewer than `bytes` are free to this user where `folder` lies.
void require_free_space(const std::filesystem::path& folder, std::uint64_t bytes);

/// Throws UserError if `path` is a link that another user has made, root excepted. Called before a file is appended to.
void require_no_foreign_link(const std::filesystem::path& path);

/// Throws UserError if this name is not a folder, or a link to one: files made in it would go elsewhere.
void require_no_link(const std::filesystem::path& folder);
/// Why a file of this name could not be opened for writing, from errno: "Permission denied; it is another user's, of mode 644".
std::string why_not_opened(const std::filesystem::path& path, int error);

/// Returns true if `path` names the open file `fd`, which may have been moved, removed or replaced. Throws CallError.
bool is_file_at(int fd, const std::filesystem::path& path);

/// Returns true if this is a folder, and no link, in which all names are ours: remove_our_files() then removes it. Throws
/// CallError.
bool holds_only_our_files(const std::filesystem::path& folder, const std::function<bool(const std::string& name)>& is_ours);
/// Removes from a folder those files whose names are ours, then the folder if nothing else is in it. A link to a folder is left
/// alone. Returns whether the folder is gone, as it is if there was none. Throws CallError.
bool remove_our_files(const std::filesystem::path& folder, const std::function<bool(const std::string& name)>& is_ours);

}  // namespace fsdp
