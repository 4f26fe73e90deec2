// The formats of token files. Each has a file of its own with its row, and a line in formats.cpp; docs/extending-format.md adds
// one.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "data/token_writer.hpp"
#include "data/tokens.hpp"

namespace fsdp {

struct TokenFormat {
  std::string_view name;   // that users choose it by
  std::string_view about;  // a sentence or two for the help
  /// Returns true if the file is of this format, by its first bytes (at most 256) and by what is next to it.
  bool (*recognises)(const std::filesystem::path& path, std::string_view beginning);
  /// Throws UserError for a file that cannot be used.
  std::unique_ptr<Tokens> (*open)(const std::filesystem::path& path);
  /// `state` is what TokenWriter::state() returned in another process, or null; `shard_tokens` is the most tokens of a file.
  /// Throws UserError if there cannot be such a file or another process writes it now, and DamagedError if what `state` says of
  /// the temporary files is not so.
  std::unique_ptr<TokenWriter> (*make_writer)(const std::filesystem::path& path, std::size_t vocab_size,
                                              const nlohmann::json& state, std::uint64_t shard_tokens);
  bool resumes = true;      // its writers have a state
  bool has_shards = false;  // more tokens than `shard_tokens` become several numbered files
  /// How its files' names end, if names of other formats must not end so.
  std::vector<std::string_view> endings = {};
  /// The file that a name stands for; null: of this name.
  std::filesystem::path (*file_of)(const std::filesystem::path& name) = nullptr;
};
/// All rows, those of the library first, of which the first is the one that fsdp-tokenize writes by default. The first that
/// recognises a file opens it.
const std::vector<const TokenFormat*>& token_formats();
/// Throws UserError, which names those that there are.
const TokenFormat& find_token_format(std::string_view name);
/// Adds a row, which must live as long as the program. Call it before anything else: threads that look for a format at the same
/// time would see the table change.
void add_token_format(const TokenFormat& format);

/// Whether a file is text as far as its first bytes tell: no format is recognised, and no control character is among them.
/// Throws what InputFile throws.
bool is_text_file(const std::filesystem::path& path);

/// Throws UserError for a file that is no text as it is, by its first bytes: compressed, in UTF-16, of another program, or,
/// unless `any_bytes` may follow, with control characters.
void require_no_known_kind(const std::filesystem::path& path, bool any_bytes);
/// The same for a stream that begins with `beginning`.
void require_no_known_kind(const std::filesystem::path& name, std::string_view beginning, bool any_bytes);

/// "'a.bin' is not a token file that can be used (`why`); make one with fsdp-tokenize".
UserError unusable_tokens(const std::filesystem::path& path, const std::string& why);

}  // namespace fsdp
