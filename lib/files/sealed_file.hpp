// Sealed files: the contents, then the checksum of each block of the contents, then a footer with its own checksum. A reader
// compares a block with its checksum before it returns bytes of that block. So a parser never sees a wrong byte, and a reader
// of a part reads and compares only the blocks of that part.
//
//   contents                       any bytes; in HDF5 files those that HDF5 wrote. HDF5's tools ignore the rest of the file.
//   u64 sums[]                     XXH3-64 of each block of the contents; the last block may be shorter
//   char parts[]                   JSON: [name, offset, bytes, "XXH3-64"] of parts of the contents, so that damage has a name
//   u64 content_bytes, block_bytes, part_bytes
//   u64 sum                        XXH3-64 of all bytes between the contents and this number
//   char magic[8]                  "fsdpseal"
//
// Numbers are little-endian. docs/checkpoint-format.md describes the format for users. Some formats allow nothing after the
// contents; the seal is then a separate file next to it: model.safetensors.xxh3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"

namespace fsdp {

/// Selects whether bytes are compared with their checksums when they are read.
enum class Verify { no, yes };

/// The path of the separate seal of a file: model.safetensors.xxh3.
std::filesystem::path seal_beside(const std::filesystem::path& path);

/// A part of the contents that has a name, such as a tensor.
struct SealedPart {
  std::string name;
  std::uint64_t offset = 0, bytes = 0, checksum = 0;
};

/// Computes the checksums of the blocks of a file's contents.
class BlockSums {
 public:
  explicit BlockSums(std::size_t block_bytes) : block_bytes_(block_bytes) {}
  /// The block size for contents of this length. Blocks are small, so that reading a part reads few bytes around it, unless
  /// that would give too many blocks.
  static std::size_t block_bytes_for(std::uint64_t content_bytes);

  /// Adds the next bytes of the contents.
  void add(const void* data, std::size_t bytes);
  /// The seal, which follows the contents in a sealed file. Call it after all bytes are added.
  std::string trailer(const std::vector<SealedPart>& parts) const;
  std::uint64_t bytes() const { return bytes_; }
  std::vector<std::uint64_t> sums() const;

 private:
  std::size_t block_bytes_;
  std::vector<std::uint64_t> sums_;  // checksums of the complete blocks
  RunningSum block_;                 // checksum of the incomplete block
  std::uint64_t bytes_ = 0;
};

/// Seals a file that has been written. Bytes that are still in memory need not be read again: the caller adds them, in order of
/// their offsets. The bytes between them are read from the file.
class Sealer {
 public:
  /// `content_bytes` is the length of the contents when the file is sealed. `file` must outlive this object.
  Sealer(OutputFile& file, std::uint64_t content_bytes)
      : file_(file), content_bytes_(content_bytes), blocks_(BlockSums::block_bytes_for(content_bytes)) {}
  /// Adds the bytes at `offset`, which must not be before the end of the bytes of the last call.
  void add(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Lists a part, with its checksum, in the seal.
  void name(SealedPart part) { parts_.push_back(std::move(part)); }
  /// The same for a part without a checksum, which is computed from the file.
  void name_and_sum(SealedPart part);
  /// Writes the trailer. Returns the size and checksum of the whole file, including the trailer.
  FileSum finish();
  /// Returns the trailer instead, for a separate file.
  std::string trailer();

 private:
  void take(const void* data, std::size_t bytes);
  void read_up_to(std::uint64_t offset);

  OutputFile& file_;
  std::uint64_t content_bytes_;
  BlockSums blocks_;
  RunningSum whole_;
  std::vector<SealedPart> parts_;
};

/// Reads the contents of a file. If the file has a seal, bytes are compared with its checksums before they are returned.
class CheckedFile {
 public:
  /// Opens a file with a separate seal, the file `seal_path`. The seal may be missing.
  static CheckedFile sealed_by(const std::filesystem::path& seal_path, const std::filesystem::path& path, Verify verify);
  /// If `expected` is given, the file must have that size and a seal. Throws what InputFile throws, and DamagedError if the
  /// size is wrong, or the seal is missing or broken.
  explicit CheckedFile(const std::filesystem::path& path, Verify verify = Verify::yes,
                       std::optional<FileSum> expected = std::nullopt);

  const std::filesystem::path& path() const { return file_.path(); }
  /// The size of the contents, without the seal.
  std::uint64_t size() const { return content_bytes_; }
  /// Returns true if the file has checksums (or no contents).
  bool is_checked() const { return !sums_.empty() || content_bytes_ == 0; }
  /// Reads bytes of the contents and compares them with their checksums. With Verify::no, `numbers` (elements of tensors) are
  /// not compared; if the seal lists parts, the bytes must also be within one of them. Throws DamagedError, which names the
  /// damaged bytes, or CallError. Only one thread may call this at a time.
  void read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers = true) const;
  void prefetch(std::uint64_t offset, std::size_t bytes) const { file_.prefetch(offset, bytes); }
  /// The name of the first damaged part that contains some of these bytes; empty if there is none, or if the seal lists no
  /// parts.
  std::string damaged_part(std::uint64_t offset, std::uint64_t bytes) const;

 private:
  struct Block {
    std::uint64_t index;
    std::vector<char> bytes;
  };
  struct Unread {};
  CheckedFile(const std::filesystem::path& path, Verify verify, Unread)
      : file_(path), verify_(verify), content_bytes_(file_.size()) {}
  bool read_seal(const InputFile& from, bool beside);
  bool lies_in_a_part(std::uint64_t offset, std::size_t bytes) const;
  std::size_t bytes_of(std::uint64_t block) const;
  void check_block(std::uint64_t block, const char* bytes) const;
  const Block& kept_block(std::uint64_t block) const;

  InputFile file_;
  Verify verify_;
  std::uint64_t content_bytes_;
  std::size_t block_bytes_ = 0;
  std::vector<std::uint64_t> sums_;
  std::string parts_;  // the JSON text in the seal
  std::vector<std::pair<std::uint64_t, std::uint64_t>>
      part_ranges_;                      // only with Verify::no: begin and end of each part, sorted
  mutable std::array<Block, 4> kept_{};  // blocks of which only a part was read, the latest first
};

}  // namespace fsdp
