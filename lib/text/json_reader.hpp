// Reads JSON like Python's json module, which has written most corpora, chats and lists of questions. Numbers may have any
// length, and NaN and Infinity are values. If a key occurs twice, its last value counts. Half of a surrogate pair becomes
// U+FFFD, and so do bytes that are not UTF-8.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "files/input_file.hpp"

namespace fsdp {

/// Where a JSON value in a text ends, or why its end was not found.
struct JsonEnd {
  enum Kind { whole, open, wrong } kind;  // whole: a complete value; open: the text ends within the value; wrong: not JSON
  std::size_t at = 0;                     // if `whole`: the position after the value
  std::string problem = {};               // if `wrong`: the reason
};
/// Finds the end of the value that begins at text[at]. Spaces before the value are skipped.
JsonEnd end_of_json(std::string_view text, std::size_t at);

/// Reads a text that is one JSON value. If it is something else, sets `problem` to the reason ("it is not JSON: ..."); else
/// `problem` is empty. Adds the number of replacements by U+FFFD to *replaced.
nlohmann::json read_json(std::string_view text, std::string& problem, std::size_t* replaced = nullptr);
/// The same, but members of objects keep their order.
nlohmann::ordered_json read_json_in_order(std::string_view text, std::string& problem, std::size_t* replaced = nullptr);
/// Reads a JSON file of a model's folder, as nlohmann::json or as nlohmann::ordered_json. Throws UserError if the file is not
/// one object or not UTF-8.
template <class Json = nlohmann::json>
Json read_json_object(const std::filesystem::path& path);
/// The same, but an empty object if there is no such file.
template <class Json = nlohmann::json>
Json read_object_if_there(const std::filesystem::path& path) {
  return kind_of(path) == PathKind::file ? read_json_object<Json>(path) : Json::object();
}
/// Reads the string `field` of a JSON object. The other fields are checked, but not stored. If the object has no such string,
/// or the text is not one object, returns nullopt and sets `problem` to the reason.
std::optional<std::string> read_json_field(std::string_view text, std::string_view field, std::string& problem,
                                           std::size_t* replaced = nullptr);

}  // namespace fsdp
