// Reads the parts of a tokenizer.json. A missing part, a part of the wrong type or an unknown part is a UserError.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "text/bpe.hpp"
#include "text/pattern.hpp"

namespace fsdp {

inline constexpr std::size_t longest_tokenizer_json = std::size_t{128} << 20;  // bytes; larger files are refused

/// The entry `key` of `part`; null if there is none.
template <class Json>
const Json& entry(const Json& part, const std::string& key) {
  static const Json none;
  const auto found = part.find(key);
  return found == part.end() ? none : *found;
}
/// The error "the normalizer Precompiled is not known here ...".
UserError unknown_part(std::string_view kind, std::string_view type);
/// Throws RunError if the normalizer has made a text of `before` bytes much longer than a usual one does (a Unicode normal form
/// is at most 11 times as long as its character). Without this check a hostile tokenizer.json could fill the memory.
void require_sane_growth(std::size_t before, std::size_t after);
/// The entry "type" of `part`. `kind` is what the error message calls `part`, such as "normalizer".
std::string part_type(const nlohmann::json& part, std::string_view kind);
/// The entry `key` of `part`, which must be a list, a text or a flag. If a flag is absent or null, `missing` is returned.
const nlohmann::json& part_list(const nlohmann::json& part, const char* key);
std::string part_text(const nlohmann::json& part, const char* key);
bool part_flag(const nlohmann::json& part, const char* key, bool missing);
/// Reads the id of a token: 0 to 2^24 - 1.
TokenId part_id(const nlohmann::json& number, std::string_view token);
/// Reads the entry "pattern": {"Regex": "..."} or {"String": "..."}.
Pattern part_pattern(const nlohmann::json& part);

}  // namespace fsdp
