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
  virtual void end_document() = 0;
  /// Makes a writer that stores the tokens' loss mask in the same file. Returns null if the format has no place for a mask.
  /// Call finish() of the mask's writer, which returns no files, before finish() of this writer, and destroy the mask's writer
  /// first.
  virtual std::unique_ptr<TokenWriter> make_mask_writer() { return nullptr; }
  /// Waits until all tokens so far are on the disk, so that they survive a kill of this process.
  virtual void sync() = 0;
  /// The state from which a writer in a later process resumes. Call it directly after sync(). Null if the format cannot be
  /// resumed.
  virtual nlohmann::json state() const = 0;
  /// Waits until all tokens are on the disk, and gives the files their final names, replacing existing files. Call it once, as
  /// the last function. Returns the files in order.
  virtual std::vector<WrittenFile> finish() = 0;
};

/// The largest number of tokens in a file of llm.c's format, which has 31 bits for it.
inline constexpr std::uint64_t most_llmc_tokens = 2147483647;

/// Makes a writer of llm.c's format: 16 bits per token for vocabularies up to 65536, else 32. More than `shard_tokens` tokens
/// become several files: train.bin is then train_000001.bin, train_000002.bin and so on, each full except the last. `state` is
/// what state() returned in the process to resume, or null. Throws UserError if the file cannot be created or another process
/// is writing it, and DamagedError if the temporary files do not match `state`.
std::unique_ptr<TokenWriter> make_llmc_writer(const std::filesystem::path& path, std::size_t vocab_size,
                                              std::uint64_t shard_tokens = most_llmc_tokens,
                                              const nlohmann::json& state = nullptr);

/// A run has written `files` files. Finds other files that a pattern for these would match, too: numbered files of an earlier
/// run that wrote more files, and train.bin if there are several files now. Other programs may have written some of them.
std::vector<std::filesystem::path> llmc_files_of_earlier_runs(const std::filesystem::path& path, std::size_t files);

/// Makes a writer of Megatron-LM's memory-mapped data sets, which fairseq reads, too. It writes NAME.bin and NAME.idx for the
/// path NAME, NAME.bin or NAME.idx, with 16 bits per token for vocabularies below 65,500, else 32. Each document is a sequence;
/// one of more than 2^30 tokens becomes several. `state` and the errors are as in make_llmc_writer().
std::unique_ptr<TokenWriter> make_indexed_writer(const std::filesystem::path& path, std::size_t vocab_size,
                                                 const nlohmann::json& state = nullptr);
/// Makes a writer of an HDF5 file with a compressed dataset "tokens" of 16 or 32 bits, and "document_lengths" of 32 bits if any
/// document ends. The mask is the dataset "loss_mask". The file cannot be resumed: state() returns null. Throws UserError like
/// make_llmc_writer().
std::unique_ptr<TokenWriter> make_hdf5_writer(const std::filesystem::path& path, std::size_t vocab_size);

/// Writes all tokens at once as a file in llm.c's format, with 16 or 32 bits per token.
void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens);
void write_token_file(const std::filesystem::path& path, std::span<const std::uint32_t> tokens);

}  // namespace fsdp
