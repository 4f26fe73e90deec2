#include "files/json_lines.hpp"

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

}  // namespace fsdp
