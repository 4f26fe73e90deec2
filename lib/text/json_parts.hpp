// Reads the parts of a tokenizer.json: what is missing or of the wrong kind, and every part that is not known, is a UserError.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "text/bpe.hpp"
#include "text/pattern.hpp"

namespace fsdp {

/// "the normalizer Precompiled is not known here ..."
UserError unknown_part(std::string_view kind, std::string_view type);
/// Throws RunError if a text becomes so much longer as no tokenizer makes it (one character is at most 11 times as long in a
/// normal form): a file of which somebody wants that it fills the memory.
void require_sane_growth(std::size_t before, std::size_t after);
/// The entry "type" of an object.
std::string part_type(const nlohmann::json& part, std::string_view kind);
/// Entries of an object. Those with a default may be missing or null.
const nlohmann::json& part_list(const nlohmann::json& part, const char* key);
std::string part_text(const nlohmann::json& part, const char* key);
bool part_flag(const nlohmann::json& part, const char* key, bool missing);
/// The id of a token: 0 to 2^24 - 1.
TokenId part_id(const nlohmann::json& number, std::string_view token);
/// {"Regex": "..."} or {"String": "..."} at "pattern".
Pattern part_pattern(const nlohmann::json& part);

}  // namespace fsdp
