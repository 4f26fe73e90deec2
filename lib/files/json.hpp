// Parsing and writing of JSON files, by nlohmann's library. Deeply nested JSON is refused, because the library is recursive and
// could overflow the stack. When JSON is written, bytes that are not UTF-8 are replaced, because the library would throw; names
// of folders may have such bytes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "files/input_file.hpp"

namespace fsdp {

/// Parses `text`. If it is not JSON or is nested deeper than 64, is_discarded() of the result is true. `watch` is passed to
/// the library as its parser callback.
nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& watch = nullptr);
/// Parses a whole file by parse_json(). Throws the errors of read_text_file().
nlohmann::json read_json_file(const std::filesystem::path& path, std::size_t most_bytes = longest_text);
/// The same for a file in which a mistake must not go unseen. Throws UserError, which begins with `name`, if the file is not
/// JSON, or if an object has a key twice.
nlohmann::json read_strict_json_file(const std::filesystem::path& path, const std::string& name);
/// Returns the value as text, as dump() of the library does, but replaces bytes that are not UTF-8 by U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
/// The number of an object's key; NaN if `object` is no object or has no such number.
double number_at(const nlohmann::json& object, const char* key);
/// The text of an object's key; "" if `object` is no object or has no such text.
std::string text_at(const nlohmann::json& object, const char* key);
/// Returns a short text of the value for messages. NaN and infinite numbers are written as NaN, Infinity and -Infinity.
std::string json_excerpt(const nlohmann::json& value);

/// Returns an object as text, one entry per line, and adds a last entry, "xxh3_64": the checksum of all text before it.
std::string seal_json(const nlohmann::ordered_json& object);
enum class Seal { right, broken, none };
/// Checks the entry "xxh3_64" that seal_json() has written into the first object of `text`. The object is not parsed. Sets
/// *end to the end of the object.
Seal check_seal(std::string_view text, std::size_t* end = nullptr);

}  // namespace fsdp
