// Files below HDF5: exact byte ranges in, checksums, and what makes a file or a name durable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

/// A file open for reading by position.
class InputFile {
 public:
  /// Throws UserError.
  explicit InputFile(const std::filesystem::path& path);
  InputFile(const InputFile&) = delete;
  ~InputFile();
  std::uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  /// Exactly `bytes` from `offset`. Throws UserError if the file ends before.
  void read(std::uint64_t offset, void* out, std::size_t bytes) const;
  /// This will be read soon, by whomever: the disk may begin.
  void prefetch(std::uint64_t offset, std::size_t bytes) const;

 private:
  std::filesystem::path path_;
  int fd_;
  std::uint64_t size_ = 0;
};

/// XXH3-64 (xxhash.com), the checksum of everything here.
std::uint64_t checksum(const void* data, std::size_t bytes);
/// "0123456789abcdef"
std::string checksum_text(std::uint64_t checksum);

struct FileSum {
  std::uint64_t bytes = 0, checksum = 0;
  bool operator==(const FileSum&) const = default;
};
/// Of every byte of the file; tells of the bytes of each piece read. Throws UserError.
FileSum sum_file(const std::filesystem::path& path, const std::function<void(std::size_t)>& piece_done = nullptr);
/// The same, of a file of which parts need not be read, because what was written there is known. In order of their offsets.
struct KnownPart {
  std::uint64_t offset;
  std::span<const std::byte> bytes;
};
FileSum sum_file(const std::filesystem::path& path, std::span<const KnownPart> known);

/// Whole, or UserError.
std::string read_text_file(const std::filesystem::path& path);
/// Writes under a temporary name, waits for the disk, renames, waits again. Throws CallError.
void write_text_file_durably(const std::filesystem::path& path, std::string_view text);
/// Waits until the names in this folder are on the disk. Throws CallError.
void sync_folder(const std::filesystem::path& folder);
/// Renames and waits until that is on the disk. Throws CallError.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Throws RunError if fewer than `bytes` are free to this user where `folder` lies.
void require_free_space(const std::filesystem::path& folder, std::uint64_t bytes);

}  // namespace fsdp
