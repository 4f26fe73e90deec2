#include "files/json.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/user_error.hpp"
#include "files/checksum.hpp"

namespace fsdp {

namespace {

constexpr std::size_t deepest = 64;
constexpr std::string_view seal_key = ",\n \"xxh3_64\": \"";  // indent of one space: nested entries have more
constexpr std::string_view seal_end = "\"\n}\n";

/// Returns how deeply brackets are nested outside of strings. The result is correct for every text that the parser accepts.
std::size_t depth_of(std::string_view text) {
  std::size_t depth = 0, most = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return most;
}

template <class Json>
std::string dumped(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& watch) {
  // JSON allows no zero byte, but at a zero byte the library ends the text and ignores the rest.
  if (depth_of(text) > deepest || text.find('\0') != text.npos) return nlohmann::json(nlohmann::json::value_t::discarded);
  return nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
}

double number_at(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return std::numeric_limits<double>::quiet_NaN();
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}
std::string text_at(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

nlohmann::json read_json_file(const std::filesystem::path& path, std::size_t most_bytes) {
  return parse_json(read_text_file(path, most_bytes));
}

nlohmann::json read_strict_json_file(const std::filesystem::path& path, const std::string& name) {
  std::vector<std::set<std::string>> keys;  // of the objects around
  std::string twice;
  using Event = nlohmann::json::parse_event_t;
  nlohmann::json json = parse_json(read_text_file(path), [&](int, Event event, const nlohmann::json& parsed) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second) twice = parsed.get<std::string>();
    return true;
  });
  if (json.is_discarded()) throw UserError(name + " is no JSON (it may be damaged or cut off); give another file");
  if (!twice.empty()) throw UserError(format("{} has '{}' twice in an object; remove one", name, excerpt(twice)));
  return json;
}

std::string json_text(const nlohmann::json& value, int indent) { return dumped(value, indent); }
std::string json_text(const nlohmann::ordered_json& value, int indent) { return dumped(value, indent); }

std::string json_excerpt(const nlohmann::json& value) {
  if (const double number = value.is_number_float() ? value.get<double>() : 0; !std::isfinite(number))
    return std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
  return excerpt(json_text(value));
}

std::string seal_json(const nlohmann::ordered_json& object) {
  expect(object.is_object() && !object.empty(), "an object is sealed");
  std::string text = json_text(object, 1);
  text.resize(text.size() - std::string_view("\n}").size());
  return format("{}{}{}{}", text, seal_key, checksum_text(checksum(text.data(), text.size())), seal_end);
}

Seal check_seal(std::string_view text, std::size_t* end) {
  const std::size_t close = text.find("\n}\n");
  if (end) *end = close == std::string_view::npos ? text.size() : close + 3;
  const std::string_view object = text.substr(0, close == std::string_view::npos ? close : close + 3);
  const std::size_t at = object.rfind(seal_key);
  if (at == std::string_view::npos) return Seal::none;
  const std::string wanted = format("{}{}{}", seal_key, checksum_text(checksum(object.data(), at)), seal_end);
  return object.substr(at) == wanted ? Seal::right : Seal::broken;
}

}  // namespace fsdp
