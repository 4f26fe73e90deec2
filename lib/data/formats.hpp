// The table of the formats of token files. The row of a format is a TokenFormat; it is defined in the format's own file and
// listed in formats.cpp. docs/extending-token-format.md shows how to add a format.
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
  std::string_view name;   // the name by which users choose it
  std::string_view about;  // a sentence or two for the help
  /// Returns true if the file has this format, judged by its first bytes (at most 256) and the files next to it.
  bool (*recognises)(const std::filesystem::path& path, std::string_view beginning);
  /// Opens a file. Throws UserError if it cannot be used.
  std::unique_ptr<Tokens> (*open)(const std::filesystem::path& path);
  /// Makes a writer. `state` is what TokenWriter::state() returned in the process to resume, or null. `shard_tokens` is the
  /// largest number of tokens per file. Throws UserError if the file cannot be created or another process is writing it, and
  /// DamagedError if the temporary files do not match `state`.
  std::unique_ptr<TokenWriter> (*make_writer)(const std::filesystem::path& path, std::size_t vocab_size,
                                              const nlohmann::json& state, std::uint64_t shard_tokens);
  bool resumes = true;      // the format's writers have a state from which a killed run is resumed
  bool has_shards = false;  // more than `shard_tokens` tokens are written to several numbered files
  /// File name endings of this format. Files of other formats must not be written with these endings.
  std::vector<std::string_view> endings = {};
  /// Returns the path of the file that is written for `name`. If this is null, the path is `name` itself.
  std::filesystem::path (*file_of)(const std::filesystem::path& name) = nullptr;
};
/// All rows, with the library's own rows first. fsdp-tokenize writes the first format by default. A file is opened by the first
/// row that recognises the file.
const std::vector<const TokenFormat*>& token_formats();
/// Finds a format. Throws UserError, which lists the known formats, if there is none of this name.
const TokenFormat& find_token_format(std::string_view name);
/// Adds a row, which must live as long as the program. Call this before all other functions: the table is not locked against
/// other threads.
void add_token_format(const TokenFormat& format);

/// Returns true if a file looks like text, also if it is packed or has rows (text_file.hpp): no format recognises it, and its
/// first bytes have no control characters. Throws what TextFile throws.
bool is_text_file(const std::filesystem::path& path);

/// Throws UserError if the beginning of a file or stream shows that it is not plain text: it is compressed, in UTF-16, or a
/// file of another program. Unless `any_bytes` is true, control characters are refused, too.
void require_no_known_kind(const std::filesystem::path& name, std::string_view beginning, bool any_bytes);

/// The error "'a.bin' is not a token file that can be used (`why`); make one with fsdp-tokenize".
UserError unusable_tokens(const std::filesystem::path& path, const std::string& why);

}  // namespace fsdp
