// Files of tokens, written as the tokens come: memory does not grow with them. What is written has another name until it is
// whole and on the disk. A writer can be asked to make sure of what it has so far, and one of a later process goes on there: so
// hours of work survive a kill.
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

/// A file that is whole, durable, and has its name.
struct WrittenFile {
  std::filesystem::path path;
  std::uint64_t tokens = 0;
};

/// Writes tokens in one format. Every function throws CallError if the disk fails or is full. A writer that goes away before
/// finish() removes what it has written, unless sync() was called: then that stays, under its temporary names, for a later one.
class TokenWriter {
 public:
  virtual ~TokenWriter() = default;

  /// Appends tokens; the caller keeps them. Each is below the vocabulary that the writer was made for.
  virtual void add(std::span<const TokenId> tokens) = 0;
  /// The document that these tokens belong to ends here. Formats without documents do nothing.
  virtual void end_document() = 0;
  /// A writer of these tokens' mask into the same file, or null if the format has no place for it there. Its finish() returns
  /// nothing and comes first; it goes away before this.
  virtual std::unique_ptr<TokenWriter> make_mask_writer() { return nullptr; }
  /// Waits until all tokens so far are on the disk, where they stay if this process is killed.
  virtual void sync() = 0;
  /// Called right after sync(): what a writer of a later process is given to resume from there. Null if the format does not
  /// allow that.
  virtual nlohmann::json state() const = 0;
  /// Waits until all is on the disk and gives the files their names, in the place of what had these. Called once, last. Returns
  /// the files in order.
  virtual std::vector<WrittenFile> finish() = 0;
};

/// No file of llm.c's format has more tokens: it counts them in 31 bits.
inline constexpr std::uint64_t most_llmc_tokens = 2147483647;

/// llm.c's format: 16 bits a token for vocabularies up to 65536, else 32. More than `shard_tokens` tokens become several files:
/// train.bin is then train_000001.bin, train_000002.bin and so on, each full but for the last. `state` is what state() returned
/// in another process, or null. Throws UserError if there cannot be such a file or another process writes it now, and
/// DamagedError if what `state` says of the temporary files is not so.
std::unique_ptr<TokenWriter> make_llmc_writer(const std::filesystem::path& path, std::size_t vocab_size,
                                              std::uint64_t shard_tokens = most_llmc_tokens,
                                              const nlohmann::json& state = nullptr);

/// Files that lie beside these, are not of them, and would be read by a pattern for them: numbered ones of an earlier run with
/// the same path that wrote more of them, or train.bin where there are several now. Some may be another program's.
std::vector<std::filesystem::path> llmc_files_of_earlier_runs(const std::filesystem::path& path, std::size_t files);

/// A memory-mapped data set as Megatron-LM writes it, NAME.bin and NAME.idx for a path of NAME, NAME.bin or NAME.idx: 16 bits a
/// token for vocabularies below 65,500, else 32, and a sequence per document; one of more than 2^30 tokens becomes several.
/// fairseq reads it, too. `state` and errors as above.
std::unique_ptr<TokenWriter> make_indexed_writer(const std::filesystem::path& path, std::size_t vocab_size,
                                                 const nlohmann::json& state = nullptr);
/// An HDF5 file with a compressed dataset "tokens" of 16 or 32 bits, and, once a document has ended, "document_lengths" of 32;
/// the mask is "loss_mask".
/// Such a file cannot be resumed: state() returns null. Throws UserError as above.
std::unique_ptr<TokenWriter> make_hdf5_writer(const std::filesystem::path& path, std::size_t vocab_size);

/// All tokens at once, of 16 or of 32 bits.
void write_token_file(const std::filesystem::path& path, std::span<const std::uint16_t> tokens);
void write_token_file(const std::filesystem::path& path, std::span<const std::uint32_t> tokens);

}  // namespace fsdp
