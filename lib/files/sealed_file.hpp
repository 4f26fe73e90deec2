// Sealed files: what they hold, then the checksum of each block of it, then a footer that has a checksum of its own. A reader
// compares every block with its checksum before it hands out a byte of it, so that whoever parses the file never sees a wrong
// one, and whoever wants a part reads and compares that part alone.
//
//   contents                       any bytes: for HDF5 files those that HDF5 wrote; its tools ignore what follows them
//   u64 sums[]                     XXH3-64 of each block of the contents; the last block may be shorter
//   char parts[]                   JSON: [name, offset, bytes, "XXH3-64"] of parts of the contents, so that damage has a name
//   u64 content_bytes, block_bytes, part_bytes
//   u64 sum                        of all between the contents and this number
//   char magic[8]                  "fsdpseal"
//
// Numbers are little-endian. docs/checkpoint-format.md describes the same for users. Beside a file of a format that allows
// nothing after its contents, all but the contents is a file of its own: model.safetensors.xxh3.
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

/// Whether what is read is compared with its checksums.
enum class Verify { no, yes };

/// The name of the seal beside a file: model.safetensors.xxh3.
std::filesystem::path seal_beside(const std::filesystem::path& path);

/// Some of the contents that have a name: a tensor.
struct SealedPart {
  std::string name;
  std::uint64_t offset = 0, bytes = 0, checksum = 0;
};

/// The checksums of the blocks of some contents.
class BlockSums {
 public:
  explicit BlockSums(std::size_t block_bytes) : block_bytes_(block_bytes) {}
  /// The size of blocks for contents of this length. Blocks are small, so that a part can be read without much around it,
  /// unless there would be too many.
  static std::size_t block_bytes_for(std::uint64_t content_bytes);

  /// The next bytes of the contents.
  void add(const void* data, std::size_t bytes);
  /// The seal, which follows the contents in a sealed file. Called once all bytes were added.
  std::string trailer(const std::vector<SealedPart>& parts) const;
  std::uint64_t bytes() const { return bytes_; }
  std::vector<std::uint64_t> sums() const;

 private:
  std::size_t block_bytes_;
  std::vector<std::uint64_t> sums_;  // of whole blocks
  RunningSum block_;                 // of the one that is not whole yet
  std::uint64_t bytes_ = 0;
};

/// Seals a file that has been written. What was written from memory need not be read again: it is given, in order of its
/// place; what lies between is read from the file.
class Sealer {
 public:
  /// `file`, whose contents will have this length, must outlive this.
  Sealer(OutputFile& file, std::uint64_t content_bytes)
      : file_(file), content_bytes_(content_bytes), blocks_(BlockSums::block_bytes_for(content_bytes)) {}
  /// These bytes are at `offset`, which is not before the end of those of the last call.
  void add(std::uint64_t offset, const void* data, std::size_t bytes);
  /// These bytes have a name.
  void name(SealedPart part) { parts_.push_back(std::move(part)); }
  /// The same, with their checksum as the file has them.
  void name_and_sum(SealedPart part);
  /// Writes the trailer. Returns size and checksum of the whole file, trailer and all.
  FileSum finish();
  /// Instead: the trailer, for a file of its own.
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

/// The contents of a file, which are compared with the checksums of its seal, if it has one, before they are handed out.
class CheckedFile {
 public:
  /// Opens a file whose seal, if it has one, is the file `seal_path` beside it.
  static CheckedFile sealed_by(const std::filesystem::path& seal_path, const std::filesystem::path& path, Verify verify);
  /// With `expected` the file must have a seal, and the expected size. Throws what InputFile throws, and DamagedError if that
  /// is not so, or the seal is broken.
  explicit CheckedFile(const std::filesystem::path& path, Verify verify = Verify::yes,
                       std::optional<FileSum> expected = std::nullopt);

  const std::filesystem::path& path() const { return file_.path(); }
  /// The size of the contents, without the seal.
  std::uint64_t size() const { return content_bytes_; }
  /// Whether the file's bytes have checksums to be compared with.
  bool is_checked() const { return !sums_.empty() || content_bytes_ == 0; }
  /// Bytes of the contents, each compared unless Verify::no and they are `numbers`: by the caller's word, and, where the seal
  /// names parts, of one of these. Throws DamagedError, which names the block, or CallError. Not for several threads at once.
  void read(std::uint64_t offset, void* out, std::size_t bytes, bool numbers = true) const;
  void prefetch(std::uint64_t offset, std::size_t bytes) const { file_.prefetch(offset, bytes); }
  /// The name of the first part which is not what was written, of those that have some of these bytes; empty if there is none,
  /// or parts have no names here.
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
  std::string parts_;                                                 // as they stand in the seal
  std::vector<std::pair<std::uint64_t, std::uint64_t>> part_ranges_;  // with Verify::no: begin and end of each, in order
  mutable std::array<Block, 4> kept_{};                               // what was read of in part, the latest first
};

}  // namespace fsdp
