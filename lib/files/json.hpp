// Parsing and writing the JSON of files. JSON that is nested deeper than our files and Hugging Face's is refused, because
// nlohmann's library walks values recursively. Bytes that are not UTF-8, which names of folders may have, are replaced when
// JSON is written, because the library would throw.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "files/input_file.hpp"

namespace fsdp {

/// Parses `text`. The result is discarded (is_discarded()) if the text is not JSON or is nested deeper than 64. `watch` is the
/// library's parser callback.
nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& watch = nullptr);
/// The same with the keys of each object in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text);
/// parse_json() of a whole file. Throws what read_text_file() throws.
nlohmann::json read_json_file(const std::filesystem::path& path, std::size_t most_bytes = longest_text);
/// The value as dump() writes it, with U+FFFD for bytes that are not UTF-8.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
/// The value as a short text for messages, with names for NaN and Infinity.
std::string json_excerpt(const nlohmann::json& value);

/// Writes an object as text, one entry per line. The last entry, "xxh3_64", is the checksum of all text before it.
std::string seal_json(const nlohmann::ordered_json& object);
enum class Seal { right, broken, none };
/// Checks the seal of the first object in `text` that seal_json() wrote, without parsing it. *end is set to the object's end.
Seal check_seal(std::string_view text, std::size_t* end = nullptr);

}  // namespace fsdp
