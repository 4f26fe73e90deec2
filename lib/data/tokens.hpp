// The interface to token data: one long row of tokens, stored in any file format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "text/data_counts.hpp"

namespace fsdp {

/// A value that is no token in any vocabulary.
inline constexpr std::uint32_t no_token = std::numeric_limits<std::uint32_t>::max();

/// Immutable; several threads may read at once. Files are read on demand and not memory-mapped, so that truncating a file
/// during a run gives an error instead of a crash.
class Tokens {
 public:
  virtual ~Tokens() = default;

  /// The number of tokens.
  virtual std::uint64_t size() const = 0;
  /// Copies tokens [begin, begin + out.size()), which must exist. Throws RunError if a file has become shorter, and CallError
  /// if the disk fails. A stored number that is negative or has more than 32 bits reads as `no_token`. Does not allocate.
  virtual void read(std::uint64_t begin, std::span<std::uint32_t> out) const = 0;
  /// The name for messages: "'a.bin'", "'a.bin' and 3 others".
  virtual std::string name() const = 0;
  /// The place of a token for messages: "position 17 of 'a.bin'".
  virtual std::string place(std::uint64_t position) const;
  /// The largest token that the file can store; for several files, the largest that all of them can store.
  virtual std::uint64_t largest_possible() const = 0;
  /// Returns true if the format stores where documents begin.
  virtual bool has_documents() const { return false; }
  /// The position of the first token of each document, in ascending order, beginning with 0. Empty if no file stores
  /// them; if only some of several files do, those of these files. Reads the whole index.
  virtual std::vector<std::uint64_t> documents() const { return {}; }
  /// The loss mask, which has 1 for each token that counts in the loss, and 0 for the others. Null if the data have no mask.
  virtual std::unique_ptr<Tokens> mask() const { return nullptr; }
  /// What is known of the rows from the time when they became tokens; the other counts are 0.
  virtual DataCounts counts() const { return {}; }
  /// A warning about contents of the files that are not used; empty if all contents are used.
  virtual std::string unread() const { return ""; }
  /// Checks contents that must be read completely, such as a long index. The ranks of a job share this work: each call checks
  /// only part `part` of `parts`. Throws UserError.
  virtual void check([[maybe_unused]] std::size_t part, [[maybe_unused]] std::size_t parts) const {}
};

/// Opens a file in the format that its content shows (formats.hpp). For a data set in two files, `path` is one of them or their
/// common NAME. Throws UserError if a file is missing, empty, truncated or of an unknown format.
std::unique_ptr<Tokens> open_token_file(const std::filesystem::path& path);

/// The error for joined data of which some have a loss mask, and others do not.
UserError only_some_have_masks(const std::string& data, std::size_t with, std::size_t without);
/// Joins the rows of `parts`, of which there must be at least one, into one row.
std::unique_ptr<Tokens> join(std::vector<std::unique_ptr<Tokens>> parts);

/// The result of check_vocabulary() for a part of the tokens.
struct TokenCheck {
  std::uint32_t largest = 0;
  /// A checksum: the sum over all parts, modulo 2^64, does not depend on their number, and almost always changes if any token
  /// changes. 0 if not all tokens were read.
  std::uint64_t sum = 0;
};
/// Reads part `part` of `parts`. If the parts have more than 2^30 tokens, only about 2^30 of each are read, spread over the
/// part. Throws UserError if a token that is read is not below vocab_size. The ranks share this work before training starts.
TokenCheck check_vocabulary(const Tokens& tokens, std::size_t vocab_size, std::size_t part, std::size_t parts);
/// A warning if the stored type of the tokens is too small for the vocabulary; otherwise nullopt.
std::optional<std::string> doubt_type(const Tokens& tokens, std::size_t vocab_size);
/// A checksum of tokens at 64 places. Other data of the same size almost always have another checksum, unless only few tokens
/// differ.
std::uint64_t sample_sum(const Tokens& tokens);
/// Throws UserError for a token outside the vocabulary.
[[noreturn]] void refuse_token(const Tokens& tokens, std::uint64_t position, std::uint32_t token, std::size_t vocab_size);

}  // namespace fsdp
