// Writes token files while the tokens are made, so that memory does not grow with the number of tokens. A file has a temporary
// name until it is complete and on the disk. A writer can sync its tokens to the disk, and a writer in a later process can
// continue after these tokens, so that hours of work survive a kill.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/bpe.hpp"

namespace fsdp {

/// A complete file that is on the disk under its final name.
struct WrittenFile {
  std::filesystem::path path;
  std::uint64_t tokens = 0;
};

/// Writes tokens in one format. Every function throws CallError if the disk fails or is full. A writer that is destroyed before
/// finish() removes its files. But if sync() was called, it leaves them under their temporary names for a later writer.
class TokenWriter {
 public:
  virtual ~TokenWriter() = default;

  /// Appends tokens. Each must be below the vocabulary size for which the writer was made.
  virtual void add(std::span<const TokenId> tokens) = 0;
  /// Ends the current document. Does nothing in formats without documents.
  virtual void end_document() {}
  /// Makes a writer that stores the tokens' loss mask in the same file. Returns null if the format has no place for a mask.
  /// Call finish() of the mask's writer, which returns no files, before finish() of this writer, and destroy the mask's writer
  /// first.
  virtual std::unique_ptr<TokenWriter> make_mask_writer() { return nullptr; }
  /// Waits until all tokens so far are on the disk, so that they survive a kill of this process. Does nothing in formats that
  /// cannot be resumed.
  virtual void sync() {}
  /// The state from which a writer in a later process resumes. Call it directly after sync(). Null if the format cannot be
  /// resumed.
  virtual nlohmann::json state() const { return nullptr; }
  /// Waits until all tokens are on the disk, and gives the files their final names, replacing existing files. Call it once, as
  /// the last function. Returns the files in order.
  virtual std::vector<WrittenFile> finish() = 0;
};

/// The largest number of tokens in a file of llm.c's format, which has 31 bits for it.
inline constexpr std::uint64_t most_llmc_tokens = 2147483647;

/// A run has written `files` files. Finds other files that a pattern for these would match, too: numbered files of an earlier
/// run that wrote more files, and train.bin if there are several files now. Other programs may have written some of them.
std::vector<std::filesystem::path> llmc_files_of_earlier_runs(const std::filesystem::path& path, std::size_t files);

}  // namespace fsdp
