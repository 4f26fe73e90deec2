#include "files/json_lines.hpp"

#include <charconv>

#include <simdjson.h>

#include "base/format.hpp"

namespace fsdp {

struct JsonLineReader::Parser : simdjson::dom::parser {};

JsonLineReader::JsonLineReader(std::string field) : field_(std::move(field)), parser_(std::make_unique<Parser>()) {}
JsonLineReader::JsonLineReader(JsonLineReader&&) noexcept = default;
JsonLineReader::~JsonLineReader() = default;

std::string_view JsonLineReader::read(std::string_view line, std::string& problem) {
  problem.clear();
  simdjson::dom::element value;
  if (const auto error = parser_->parse(line.data(), line.size()).get(value)) {
    problem = format("it is not JSON: {}", simdjson::error_message(error));
    return {};
  }
  simdjson::dom::object object;
  if (value.get(object)) {
    problem = "it is no object";
    return {};
  }
  simdjson::dom::element field;
  if (object.at_key(field_).get(field)) {
    problem = format("it has no \"{}\"", field_);
    return {};
  }
  std::string_view text;
  if (field.get(text)) problem = format("its \"{}\" is no text", field_);
  return text;
}

namespace {

/// The number that an escape "\uXXXX" at json[at] has; 0 if there is none.
unsigned escaped_at(std::string_view json, std::size_t at) {
  unsigned value = 0;
  if (at + 6 > json.size() || json.substr(at, 2) != "\\u") return 0;
  const char* const end = json.data() + at + 6;
  return std::from_chars(json.data() + at + 2, end, value, 16).ptr == end ? value : 0;
}

bool is_high(unsigned unit) { return unit >= 0xd800 && unit < 0xdc00; }
bool is_low(unsigned unit) { return unit >= 0xdc00 && unit < 0xe000; }

}  // namespace

std::string with_replaced_surrogates(std::string json, std::size_t* count) {
  for (std::size_t at = json.find('\\'); at != std::string::npos && at + 1 < json.size(); at = json.find('\\', at)) {
    const unsigned unit = escaped_at(json, at);
    if (is_high(unit) && is_low(escaped_at(json, at + 6))) {
      at += 12;
    } else if (is_high(unit) || is_low(unit)) {
      json.replace(at + 2, 4, "fffd");
      ++*count;
      at += 6;
    } else {
      at += 2;
    }
  }
  return json;
}

}  // namespace fsdp
