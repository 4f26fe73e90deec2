// What writers of token files share: the paths of their files, and files that grow while tokens are made.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "files/checksum.hpp"
#include "files/output_file.hpp"
#include "text/bpe.hpp"

namespace fsdp {

static_assert(std::endian::native == std::endian::little, "token files are written as they are");

/// Throws UserError unless a file with this path can be created.
void require_place(const std::filesystem::path& path);
/// The name of a file until it is complete.
std::filesystem::path temporary_path(const std::filesystem::path& path, std::size_t number = 1);
/// Removes the temporary file of a killed process. Throws UserError if the process is alive, that is, if the file is locked.
void remove_left_over(const std::filesystem::path& temporary);
/// The number `key` in the state of a writer (TokenWriter::state()) of the file `path`. Throws DamagedError.
std::uint64_t number_of_state(const nlohmann::json& state, const char* key, const std::filesystem::path& path);

/// A locked file with a header, to which numbers are appended in large pieces.
class AppendedFile {
 public:
  /// If `kept` is empty, creates a file. Otherwise opens one and keeps its first kept->bytes bytes; kept->checksum is the
  /// checksum of the kept bytes after the header. Throws DamagedError if the file does not have these bytes.
  AppendedFile(const std::filesystem::path& path, std::uint64_t header_bytes, const std::optional<FileSum>& kept = {});
  /// Appends tokens in `token_bytes` bytes each: 2 or 4.
  void append(std::span<const TokenId> tokens, std::size_t token_bytes);
  template <class Number>
  void append(Number value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    buffer_.insert(buffer_.end(), bytes, bytes + sizeof value);
    if (buffer_.size() >= buffer_bytes) flush();
  }
  void flush();
  /// Waits until all bytes so far are on the disk.
  void sync() {
    flush();
    file_.sync();
  }
  /// The checksum of the bytes written after the header.
  std::uint64_t sum() const { return sum_.value(); }
  OutputFile& file() { return file_; }

 private:
  static constexpr std::size_t buffer_bytes = std::size_t{4} << 20;
  OutputFile file_;
  std::uint64_t written_;
  RunningSum sum_;
  std::vector<std::byte> buffer_;
};

}  // namespace fsdp
