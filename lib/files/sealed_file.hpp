// A sealed file is a file whose contents are followed by a seal: a checksum of each block of the contents, and a footer with
// its own checksum. A reader compares a block with its checksum before it returns bytes of that block, so a parser never gets a
// wrong byte. To read a part of a file, only the blocks of that part are read and compared.
//
//   contents                       any bytes, for example an HDF5 file; HDF5's tools ignore the bytes after it
//   u64 sums[]                     XXH3-64 of each block of the contents; the last block may be shorter
//   char parts[]                   JSON: [name, offset, bytes, "XXH3-64"] of each part (tensor): messages name damaged parts
//   u64 content_bytes, block_bytes, part_bytes
//   u64 sum                        XXH3-64 of all bytes between the contents and this number
//   char magic[8]                  "fsdpseal"
//
// Numbers are little-endian. docs/checkpoint-format.md describes the format for users. If a format allows no bytes after the
// contents, the seal is a separate file next to the file, such as model.safetensors.xxh3.
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

/// Computes the checksum of each block of a file's contents.
class BlockSums {
 public:
  explicit BlockSums(std::size_t block_bytes) : block_bytes_(block_bytes) {}
  /// Returns the block size for contents of this length. Small blocks are better: only whole blocks can be compared, so to
  /// read a part of a file, fewer bytes around that part must be read. But the number of blocks is limited.
  static std::size_t block_bytes_for(std::uint64_t content_bytes);

  /// Adds the next bytes of the contents.
  void add(const void* data, std::size_t bytes);
  /// Returns the seal, the bytes after the contents. Call it after all contents are added.
  std::string trailer(const std::vector<SealedPart>& parts) const;
  std::uint64_t bytes() const { return bytes_; }
  std::vector<std::uint64_t> sums() const;

 private:
  std::size_t block_bytes_;
  std::vector<std::uint64_t> sums_;  // checksums of the complete blocks
  RunningSum block_;                 // checksum of the incomplete block
  std::uint64_t bytes_ = 0;
};

/// Seals a file that has been written. The caller adds the bytes that are still in memory, in order of their offsets, so that
/// they need not be read again. All other bytes are read from the file.
class Sealer {
 public:
  /// `content_bytes` is the length of the contents when the file is sealed. `file` must outlive this object.
  Sealer(OutputFile& file, std::uint64_t content_bytes)
      : file_(file), content_bytes_(content_bytes), blocks_(BlockSums::block_bytes_for(content_bytes)) {}
  /// Adds the bytes at `offset`. They must be after the bytes of the previous call.
  void add(std::uint64_t offset, const void* data, std::size_t bytes);
  /// Lists a part in the seal; part.checksum must be set.
  void name(SealedPart part) { parts_.push_back(std::move(part)); }
  /// Like name(), but computes part.checksum from the bytes in the file.
  void name_and_sum(SealedPart part);
  /// Writes the seal after the contents. Returns the size and checksum of the whole file, including the seal.
  FileSum finish();
  /// Instead of finish(): returns the seal, which the caller writes to a separate file.
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

/// Reads the contents of a file. If the file has a seal, bytes are compared with the seal's checksums before they are returned.
class CheckedFile {
 public:
  /// Opens the file `path`, whose seal is the separate file `seal_path`. The seal may be missing.
  static CheckedFile sealed_by(const std::filesystem::path& seal_path, const std::filesystem::path& path, Verify verify);
  /// Opens a file with the seal at its end. If `expected` is given, the file must have that size and a seal. Throws the errors
  /// of InputFile, and DamagedError if the seal is broken, the expected seal is missing or the size is not the expected one.
  explicit CheckedFile(const std::filesystem::path& path, Verify verify = Verify::yes,
                       std::optional<FileSum> expected = std::nullopt);

  const std::filesystem::path& path() const { return file_.path(); }
  /// The size of the contents, without the seal.
  std::uint64_t size() const { return content_bytes_; }
  /// Returns true if the file has checksums, or no contents.
  bool is_checked() const { return !sums_.empty() || content_bytes_ == 0; }
  /// Reads bytes of the contents and compares them with their checksums. `numbers` is true if the bytes are elements of a
  /// tensor, false if they will be parsed. With Verify::no, elements are not compared if they are within a part, or if the
  /// seal lists no parts. Throws DamagedError, which names the damaged bytes, or CallError. Only one thread may call this at a
  /// time.
  void read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers = true) const;
  void prefetch(std::uint64_t offset, std::size_t bytes) const { file_.prefetch(offset, bytes); }
  /// Returns the name of the first damaged part that contains some of these bytes. The name is empty if there is no such part.
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
  std::string parts_;  // the list of parts in the seal, as JSON text
  std::vector<std::pair<std::uint64_t, std::uint64_t>>
      part_ranges_;                      // only with Verify::no: begin and end of each part, sorted
  mutable std::array<Block, 4> kept_{};  // the last blocks that were read in part, the latest first
};

}  // namespace fsdp
