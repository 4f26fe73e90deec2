#include "text/end_tokens.hpp"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "text/chat_template.hpp"
#include "text/json_reader.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* generation_name = "generation_config.json";

/// The tokens of one kind ("eos", "bos" or "pad") that a file names.
struct Claim {
  std::string file;
  std::vector<TokenId> ids;
};

class SpecialTokens {
 public:
  SpecialTokens(const fs::path& folder, const fs::path& config_folder, const Tokenizer* tokenizer, std::size_t vocab_size)
      : folder_(folder), tokenizer_(tokenizer), vocab_size_(vocab_size) {
    const fs::path own = folder / "config.json", other = config_folder / "config.json";
    const bool is_own = !folder.empty() && kind_of(own) == PathKind::file;
    config_path_ = is_own || config_folder.empty() ? own : other;
    if (is_own || !config_folder.empty()) config_ = read_object_if_there(config_path_);
    if (const json size = config_.value("vocab_size", json()); size.is_number() && size != vocab_size) config_ = json::object();
    if (folder.empty()) return;
    generation_ = read_object_if_there(folder / generation_name);
    tokenizer_config_ = read_object_if_there(folder / tokenizer_name);
    map_ = read_object_if_there(folder / map_name);
  }

  /// The claims of all files about the tokens of `kind`: "eos", "bos" or "pad".
  std::vector<Claim> claims(const std::string& kind) const {
    std::vector<Claim> all = {{"config.json", ids_in(config_path_, config_, kind)},
                              {generation_name, ids_in(folder_ / generation_name, generation_, kind)},
                              {tokenizer_name, named_in(tokenizer_config_, kind)},
                              {map_name, named_in(map_, kind)}};
    if (kind == "eos") all.push_back({"the chat template", end_of_answers()});
    std::erase_if(all, [](const Claim& claim) { return claim.ids.empty(); });
    return all;
  }

 private:
  static constexpr const char* tokenizer_name = "tokenizer_config.json";
  static constexpr const char* map_name = "special_tokens_map.json";

  std::vector<TokenId> ids_in(const fs::path& path, const json& object, const std::string& kind) const {
    const std::string key = kind + "_token_id";
    const json value = object.value(key, json());
    std::vector<TokenId> ids;
    if (value.is_null()) return ids;
    for (const json& id : value.is_array() ? value : json::array({value})) {
      if (!id.is_number_integer())
        throw UserError(format("{}: {} {} is not accepted (it must be a token's id, or a list of ids); correct it",
                               path.string(), key, json_excerpt(value)));
      if (id >= 0 && id < vocab_size_) ids.push_back(id.get<TokenId>());
    }
    return ids;
  }
  std::vector<TokenId> named_in(const json& object, const std::string& kind) const {
    json token = object.value(kind + "_token", json());
    if (token.is_object()) token = token.value("content", json());
    const auto id = tokenizer_ && token.is_string() ? tokenizer_->find(token.get<std::string>()) : std::nullopt;
    return of_model(id);
  }
  std::vector<TokenId> end_of_answers() const {
    if (!tokenizer_ || folder_.empty()) return {};
    try {
      return of_model(tokenizer_->find(read_chat_template(folder_, *tokenizer_).end()));
    } catch (const UserError&) {  // no template, or one that cannot be used
      return {};
    }
  }
  std::vector<TokenId> of_model(std::optional<TokenId> id) const {
    if (id && static_cast<std::size_t>(*id) < vocab_size_) return {*id};
    return {};
  }

  fs::path folder_, config_path_;
  const Tokenizer* tokenizer_;
  std::size_t vocab_size_;
  json config_ = json::object(), generation_ = json::object(), tokenizer_config_ = json::object(), map_ = json::object();
};

std::size_t vocabulary_beside(const fs::path& folder, const Tokenizer& tokenizer) {
  const json size = folder.empty() ? json() : read_object_if_there(folder / "config.json").value("vocab_size", json());
  return size.is_number_unsigned() ? size.get<std::size_t>() : tokenizer.vocab_size();
}

std::vector<TokenId> union_of(const std::vector<Claim>& claims) {
  std::vector<TokenId> all;
  for (const Claim& claim : claims)
    for (const TokenId id : claim.ids)
      if (std::find(all.begin(), all.end(), id) == all.end()) all.push_back(id);
  return all;
}

}  // namespace

EndTokens find_end_tokens(const fs::path& given, const fs::path& config_folder, const Tokenizer* tokenizer,
                          std::size_t vocab_size) {
  const fs::path folder = kind_of(given) == PathKind::folder ? given : fs::path();
  const SpecialTokens special(folder, config_folder, tokenizer, vocab_size);
  EndTokens found;
  std::string differences;
  for (const char* const kind : {"eos", "bos", "pad"}) {
    const std::vector<Claim> claims = special.claims(kind);
    const std::vector<TokenId> all = union_of(claims);
    if (std::string_view(kind) == "eos") found.ids = all;
    // If generation_config.json names tokens, transformers uses only these. So the files agree only if that file names all
    // tokens.
    const auto is_generation = [](const Claim& claim) { return claim.file == generation_name; };
    const bool decides = std::any_of(claims.begin(), claims.end(), is_generation);
    const auto has_all = [&](const Claim& claim) {
      return union_of({claim}).size() == all.size() && (!decides || is_generation(claim));
    };
    if (claims.empty() || std::any_of(claims.begin(), claims.end(), has_all)) continue;
    std::vector<std::string> said;
    for (const Claim& claim : claims) said.push_back(format("{} {}", claim.file, fmt::join(claim.ids, " and ")));
    differences += format("{}{}: {}", differences.empty() ? "" : "; ", kind, fmt::join(said, ", "));
  }
  if (!differences.empty())
    found.contradiction = format(
        "files of the model name different special tokens ({}); a text ends at each token that is named as eos", differences);
  if (!found.ids.empty() || !tokenizer) return found;
  if (!tokenizer->after_text().empty())
    found.ids = {tokenizer->after_text().back()};
  else if (const auto id = find_end_of_text(*tokenizer))
    found.ids = {*id};
  return found;
}

std::vector<TokenId> end_tokens_beside(const fs::path& folder, const Tokenizer& tokenizer, const fs::path& chat_template) {
  std::vector<TokenId> ids = find_end_tokens(folder, {}, &tokenizer, vocabulary_beside(folder, tokenizer)).ids;
  if (chat_template.empty()) return ids;
  if (const auto end = tokenizer.find(read_chat_template(chat_template, tokenizer).end())) ids.push_back(*end);
  return ids;
}

std::string contradiction_of_end(const fs::path& folder, const Tokenizer& tokenizer, TokenId end) {
  const SpecialTokens special(folder, {}, &tokenizer, vocabulary_beside(folder, tokenizer));
  std::vector<Claim> claims = special.claims("eos");
  std::erase_if(claims,
                [](const Claim& claim) { return claim.file != "config.json" && claim.file != "generation_config.json"; });
  const std::vector<TokenId> all = union_of(claims);
  if (all.empty() || std::find(all.begin(), all.end(), end) != all.end()) return "";
  return format(
      "token {} (\"{}\") is put after each text, but {} next to the tokenizer names {} (\"{}\") as the end of texts; check "
      "which of them the model was trained with",
      end, excerpt(tokenizer.spelling(end)), claims[0].file, all[0], excerpt(tokenizer.spelling(all[0])));
}

}  // namespace fsdp
