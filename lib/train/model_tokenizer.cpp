#include "train/model_tokenizer.hpp"

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"

namespace fsdp {

void add_model_tokenizer_option(OptionTable& table, std::string& name) {
  table
      .text("tokenizer", "NAME", name,
            "the model's tokenizer: tokenizer.json, tokenizer.model, a folder with one of them, or bytes")
      .unset("the one in MODEL's folder, or bytes if the model has 256 tokens")
      .sets("tokenizer");
}

std::unique_ptr<Tokenizer> find_model_tokenizer(const std::string& name, const std::filesystem::path& model,
                                                std::size_t vocab_size) {
  std::string found = name;
  for (const char* const file : {"tokenizer.json", "tokenizer.model"})
    if (found.empty() && kind_of(model) == PathKind::folder && kind_of(model / file) == PathKind::file)
      found = (model / file).string();
  if (found.empty() && vocab_size == 256) found = "bytes";
  if (found.empty()) return nullptr;
  auto tokenizer = open_tokenizer(found);
  if (tokenizer->vocab_size() > vocab_size)
    throw UserError(
        format("the tokenizer '{}' has {} tokens and the model {} (it is that of another model); give the model's own", found,
               tokenizer->vocab_size(), vocab_size));
  return tokenizer;
}

std::vector<TokenId> find_end_tokens(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  const bool is_folder = kind_of(model) == PathKind::folder;
  for (const char* const name : {"generation_config.json", "config.json"}) {
    if (!is_folder || kind_of(model / name) != PathKind::file) continue;
    const nlohmann::json object = read_json_file(model / name);
    if (!object.is_object() || !object.contains("eos_token_id")) continue;
    const nlohmann::json& ids = object["eos_token_id"];
    std::vector<TokenId> found;
    for (const nlohmann::json& id : ids.is_array() ? ids : nlohmann::json::array({ids}))
      if (id.is_number_integer() && id >= 0 && id < tokenizer.vocab_size()) found.push_back(id.get<TokenId>());
    if (!found.empty()) return found;
  }
  if (!tokenizer.behind_text().empty()) return {tokenizer.behind_text().back()};
  for (const char* const text : {"<|endoftext|>", "</s>"})
    if (const auto id = tokenizer.find(text)) return {*id};
  return {};
}

}  // namespace fsdp
