#include "text/new_tokens.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "text/json_reader.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;  // files keep the order of their keys

std::vector<NewToken> tokens_of_json(const std::string& text, const std::string& path, bool special) {
  std::string problem;
  const nlohmann::json list = read_json(text, problem);
  if (!problem.empty()) throw UserError(format("{} is no list of new tokens ({}); correct it", path, problem));
  std::vector<NewToken> tokens;
  for (const nlohmann::json& one : list) {
    const nlohmann::json& content = one.is_object() && one.contains("content") ? one["content"] : one;
    const nlohmann::json is_special = one.is_object() ? one.value("special", nlohmann::json(special)) : nlohmann::json(special);
    if (!content.is_string() || !is_special.is_boolean())
      throw UserError(
          format("{} has the entry {} (a new token is a text, or an object with \"content\" and \"special\"); "
                 "correct it",
                 path, json_excerpt(one)));
    if (one.is_object())
      for (const auto& [key, value] : one.items())
        if (key != "content" && key != "special" && key != "id" && key != "__type" &&
            value != (key == "normalized" && !is_special))
          throw UserError(format("{} sets {} of the token {} to {} (new tokens have only content and special); leave it out",
                                 path, key, json_excerpt(content), json_excerpt(value)));
    tokens.push_back({content, is_special});
  }
  return tokens;
}

/// Returns true for a list in JSON; a word in brackets, such as "[TOOL]", begins a list of lines.
bool is_json_list(std::string_view text) {
  if (!text.starts_with('[')) return false;
  const std::size_t next = text.find_first_not_of(" \t\r\n", 1);
  return next == text.npos || std::string_view("\"{]").find(text[next]) != std::string_view::npos;
}

/// Splits a text at each `separator`.
std::vector<NewToken> tokens_between(std::string_view text, char separator, bool special) {
  std::vector<NewToken> tokens;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    tokens.push_back({std::string(text.substr(at, end - at)), special});
    at = end + 1;
  }
  return tokens;
}

/// An entry of tokenizer.json or tokenizer_config.json, as transformers writes it.
OrderedJson entry_of(const NewToken& token) {
  return {{"content", token.content}, {"single_word", false},         {"lstrip", false},
          {"rstrip", false},          {"normalized", !token.special}, {"special", token.special}};
}

OrderedJson object_in(const TokenizerFile& file) {
  std::string problem;
  OrderedJson object = read_json_in_order(file.text, problem);
  if (!object.is_object()) throw UserError(format("the {} of the tokenizer is no JSON object; fetch it again", file.name));
  return object;
}

}  // namespace

std::vector<NewToken> read_new_tokens(const std::string& given, bool special) {
  std::vector<NewToken> tokens;
  std::string source = "the list";
  if (kind_of(given) == PathKind::file) {
    source = given;
    std::string text = read_text_file(given);
    if (is_json_list(text)) {
      tokens = tokens_of_json(text, given, special);
    } else {
      std::erase(text, '\r');
      tokens = tokens_between(text, '\n', special);
      std::erase_if(tokens, [](const NewToken& token) { return token.content.empty(); });  // empty lines
    }
    if (tokens.empty()) throw UserError(format("{} has no tokens (one per line, or a JSON list); give another file", given));
  } else {
    for (const char* const ending : {".txt", ".json"})
      if (given.ends_with(ending))
        throw UserError(format("there is no file {} with new tokens (its name ends with {}); check the path", given, ending));
    tokens = tokens_between(given, ',', special);
  }
  std::set<std::string> before;
  for (const NewToken& token : tokens) {
    if (token.content.empty() || valid_until(token.content) < token.content.size())
      throw UserError(format("{} of new tokens has an empty one, or one that is not UTF-8; correct it", source));
    if (!before.insert(token.content).second)
      throw UserError(format("{} of new tokens has '{}' twice; leave one out", source, excerpt(token.content)));
  }
  return tokens;
}

std::vector<TokenizerFile> with_new_tokens(std::vector<TokenizerFile> files, const std::vector<NewToken>& tokens,
                                           std::size_t first) {
  const auto find = [&](const char* name) {
    return std::find_if(files.begin(), files.end(), [&](const TokenizerFile& file) { return file.name == name; });
  };
  const auto vocabulary = find("tokenizer.json");
  if (vocabulary == files.end())
    throw UserError(
        "the tokenizer has no tokenizer.json (new tokens are written there); load it with transformers, and save it with "
        "save_pretrained()");
  OrderedJson whole = object_in(*vocabulary);
  OrderedJson& added = whole["added_tokens"];
  if (added.is_null()) added = OrderedJson::array();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    OrderedJson one = {{"id", first + i}};
    one.update(entry_of(tokens[i]));
    added.push_back(std::move(one));
  }
  vocabulary->text = json_text(whole, 2) + "\n";
  if (const auto config = find("tokenizer_config.json"); config != files.end())
    if (OrderedJson known = object_in(*config); known.contains("added_tokens_decoder")) {
      for (std::size_t i = 0; i < tokens.size(); ++i)
        known["added_tokens_decoder"][std::to_string(first + i)] = entry_of(tokens[i]);
      config->text = json_text(known, 2) + "\n";
    }
  return files;
}

}  // namespace fsdp
