// Reads JSON like Python's json module, which has written most corpora, chats and lists of questions. Numbers may have any
// length, NaN and Infinity are values, and of equal keys the last one counts. Half of a surrogate pair, and bytes that are not
// UTF-8, become U+FFFD.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace fsdp {

/// The end of a JSON value in a text.
struct JsonEnd {
  enum Kind { whole, open, wrong } kind;  // `open`: the text ends before the value does
  std::size_t at = 0;                     // if `whole`: the position after the value
  std::string problem = {};               // if `wrong`: the reason
};
/// Finds the end of the value that begins at text[at] or after spaces there.
JsonEnd end_of_json(std::string_view text, std::size_t at);

/// Reads a text that is one value. If it is not, sets `problem` to the reason ("it is not JSON: ..."); else `problem` is empty.
/// Adds the number of replacements by U+FFFD to *replaced.
nlohmann::json read_json(std::string_view text, std::string& problem, std::size_t* replaced = nullptr);
/// Reads a JSON file of a model's folder. Throws UserError if the file is not one object or not UTF-8.
nlohmann::json read_json_object(const std::filesystem::path& path);
/// Reads one string field of a text that is one object; other fields are checked, but not stored. If there is no such string,
/// returns nullopt and sets `problem` to the reason.
std::optional<std::string> read_json_field(std::string_view text, std::string_view field, std::string& problem,
                                           std::size_t* replaced = nullptr);

}  // namespace fsdp
