// Tokens in a row, however they are stored: what the rest of the program knows of data.
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

namespace fsdp {

/// No vocabulary has it.
inline constexpr std::uint32_t no_token = std::numeric_limits<std::uint32_t>::max();

/// Immutable; several threads may read at once. What is read of a file is read when it is asked for: a file that somebody cuts
/// meanwhile is an error then, which a mapped one would not be.
class Tokens {
 public:
  virtual ~Tokens() = default;

  /// How many there are.
  virtual std::uint64_t size() const = 0;
  /// Copies tokens [begin, begin + out.size()), all of which are there. Throws RunError if a file has become shorter, and
  /// CallError if the disk fails. What a file stores that is no token, as it is negative or has more than 32 bits, reads as
  /// `no_token`. Allocates nothing of ours.
  virtual void read(std::uint64_t begin, std::span<std::uint32_t> out) const = 0;
  /// "'a.bin'", "'a.bin' and 3 others", for messages.
  virtual std::string name() const = 0;
  /// Where a token stands: "position 17 of 'a.bin'".
  virtual std::string place(std::uint64_t position) const;
  /// The largest token that the format can store here; of several files, that all of them can.
  virtual std::uint64_t largest_possible() const = 0;
  /// Whether the format says where documents begin.
  virtual bool has_documents() const { return false; }
  /// Where each document begins, in ascending order, from 0 on; empty without documents. Reads an index of all of them.
  virtual std::vector<std::uint64_t> documents() const { return {}; }
  /// A number for each token, 1 where it counts in the loss and 0 where not, if the data have such numbers; else null.
  virtual std::unique_ptr<Tokens> mask() const { return nullptr; }
  /// A warning that names other contents of the files that are not used; empty if there are none.
  virtual std::string unread() const { return ""; }
  /// Looks at part `part` of `parts` of what cannot be checked without reading all of it, such as a long index: the ranks of a
  /// job share that work. Throws UserError.
  virtual void check(std::size_t part, std::size_t parts) const;
};

/// Opens a file, recognising its format by its content (formats.hpp), or, of a data set in two files, either of them or the
/// name that both have in common. Throws UserError for what is missing, empty, truncated or of an unknown format, saying which.
std::unique_ptr<Tokens> open_token_file(const std::filesystem::path& path);

/// The rows of `parts`, one behind the other; at least one.
std::unique_ptr<Tokens> join(std::vector<std::unique_ptr<Tokens>> parts);

/// The largest token in part `part` of `parts`, or, of a part with more than 2^30 tokens, in as many that are spread over it.
/// Throws UserError if it is not below vocab_size: ranks share the work, so that a wrong token is found before training, and
/// once.
std::uint32_t check_vocabulary(const Tokens& tokens, std::size_t vocab_size, std::size_t part, std::size_t parts);
/// A warning for tokens whose type cannot hold all of a vocabulary; nothing if it can.
std::optional<std::string> doubt_type(const Tokens& tokens, std::size_t vocab_size);
/// The checksum of tokens at 64 places. Other data of the same size have another one, unless only few tokens differ.
std::uint64_t sample_sum(const Tokens& tokens);
/// What is said of a token outside the vocabulary.
[[noreturn]] void refuse_token(const Tokens& tokens, std::uint64_t position, std::uint32_t token, std::size_t vocab_size);

}  // namespace fsdp
