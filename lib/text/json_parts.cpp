#include "text/json_parts.hpp"

#include <cstdint>

#include "base/format.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace {

const nlohmann::json& entry_of_object(const nlohmann::json& part, const char* key) {
  if (part.is_object()) return entry(part, key);
  throw UserError(format("it has {} where an object should be; fetch the file again", json_excerpt(part)));
}

UserError wrong(const nlohmann::json& part, const char* key, std::string_view wanted) {
  return UserError(format("\"{}\" is not {} in {}; fetch the file again", key, wanted, json_excerpt(part)));
}

}  // namespace

UserError unknown_part(std::string_view kind, std::string_view type) {
  return UserError(
      format("the {} {} is not known here (token ids would be wrong); tokenize with the program that made this tokenizer, "
             "or use another tokenizer",
             kind, excerpt(type)));
}

void require_sane_growth(std::size_t before, std::size_t after) {
  if (after > 32 * before + 65536)
    throw RunError(format(
        "the tokenizer makes {} bytes of normalized text from {} bytes (no usual tokenizer does that); use another tokenizer",
        after, before));
}

std::string part_type(const nlohmann::json& part, std::string_view kind) {
  const nlohmann::json& type = entry_of_object(part, "type");
  if (!type.is_string()) throw UserError(format("its {} has no type; fetch the file again", kind));
  return type.get<std::string>();
}

const nlohmann::json& part_list(const nlohmann::json& part, const char* key) {
  const nlohmann::json& list = entry_of_object(part, key);
  if (!list.is_array()) throw wrong(part, key, "a list");
  return list;
}

std::string part_text(const nlohmann::json& part, const char* key) {
  const nlohmann::json& text = entry_of_object(part, key);
  if (!text.is_string()) throw wrong(part, key, "a text");
  return text.get<std::string>();
}

bool part_flag(const nlohmann::json& part, const char* key, bool missing) {
  const nlohmann::json& flag = entry_of_object(part, key);
  if (flag.is_null()) return missing;
  if (!flag.is_boolean()) throw wrong(part, key, "true or false");
  return flag.get<bool>();
}

TokenId part_id(const nlohmann::json& number, std::string_view token) {
  constexpr std::int64_t most_tokens = std::int64_t{1} << 24;
  if (!number.is_number_integer() || number.get<std::int64_t>() < 0 || number.get<std::int64_t>() >= most_tokens)
    throw UserError(format("token \"{}\" has the id {} (ids are 0 to {}); fetch the file again", excerpt(token),
                           json_excerpt(number), most_tokens - 1));
  return number.get<TokenId>();
}

Pattern part_pattern(const nlohmann::json& part) {
  const nlohmann::json& pattern = entry_of_object(part, "pattern");
  if (pattern.is_object() && pattern.contains("Regex")) return Pattern(part_text(pattern, "Regex"));
  if (pattern.is_object() && pattern.contains("String")) return Pattern::literal(part_text(pattern, "String"));
  throw wrong(part, "pattern", "a Regex or a String");
}

}  // namespace fsdp
