// JSON of files. Nothing of it is parsed that is nested deeper than any file of ours or of Hugging Face is (nlohmann's library
// walks values recursively), and nothing is written that fails for bytes that are not UTF-8, as names of folders may have.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "files/input_file.hpp"

namespace fsdp {

/// Discarded (is_discarded()) if it is not JSON, or is nested deeper than 64. `watch` is the library's parser callback.
nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& watch = nullptr);
/// The same with the keys of each object in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text);
/// parse_json() of a whole file. Throws what read_text_file() throws.
nlohmann::json read_json_file(const std::filesystem::path& path, std::size_t most_bytes = longest_text);
/// The value as dump() writes it, with U+FFFD for bytes that are not UTF-8.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
/// The value as it stands in a message, shortened: NaN and Infinity by their names.
std::string json_excerpt(const nlohmann::json& value);

/// An object as text, an entry a line, whose last entry "xxh3_64" is the checksum of all that stands before it.
std::string seal_json(const nlohmann::ordered_json& object);
enum class Seal { right, broken, none };
/// What the seal of the first such object in `text` says, which it looks at before anything is parsed. `end` is where the
/// object ends.
Seal check_seal(std::string_view text, std::size_t* end = nullptr);

}  // namespace fsdp
