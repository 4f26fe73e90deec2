#include "text/tokenizer_files.hpp"

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

#include "files/input_file.hpp"
#include "files/json.hpp"

namespace fsdp {

namespace fs = std::filesystem;

namespace {

constexpr const char* names[] = {"tokenizer.json",
                                 "tokenizer_config.json",
                                 "tokenizer.model",
                                 "vocab.json",
                                 "vocab.txt",
                                 "merges.txt",
                                 "special_tokens_map.json",
                                 "added_tokens.json",
                                 "chat_template.jinja",
                                 "chat_template.json",
                                 "generation_config.json"};

constexpr std::size_t longest_file = std::size_t{256} << 20;

}  // namespace

bool is_tokenizer_file(const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

std::vector<TokenizerFile> read_tokenizer_files(const fs::path& folder) {
  std::vector<TokenizerFile> files;
  for (const char* name : names)
    if (kind_of(folder / name) == PathKind::file) files.push_back({name, read_text_file(folder / name, longest_file)});
  return files;
}

std::vector<TokenizerFile> read_files_of_tokenizer(const std::string& name) {
  const fs::path file = find_tokenizer(name);
  if (file.empty()) return {};
  const std::string own = file.filename().string();
  if (!is_tokenizer_file(own)) {
    std::string text = read_text_file(file, longest_file);
    return {{text.starts_with('{') ? "tokenizer.json" : "tokenizer.model", std::move(text)}};
  }
  std::vector<TokenizerFile> files = read_tokenizer_files(file.has_parent_path() ? file.parent_path() : ".");
  if (own == "tokenizer.model")  // which is not the first that is looked for
    std::erase_if(files, [](const TokenizerFile& other) { return other.name == "tokenizer.json"; });
  return files;
}

bool has_tokenizer(const fs::path& folder) {
  return kind_of(folder) == PathKind::folder &&
         (kind_of(folder / "tokenizer.json") == PathKind::file || kind_of(folder / "tokenizer.model") == PathKind::file);
}

std::optional<TokenId> find_end_of_text(const Tokenizer& tokenizer, const fs::path& folder,
                                        std::vector<std::string>* looked_for) {
  std::vector<std::string> texts = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
  const fs::path config = folder / "tokenizer_config.json";
  if (!folder.empty() && kind_of(config) == PathKind::file) {
    const nlohmann::json token = read_json_object(config).value("eos_token", nlohmann::json());
    if (token.is_string()) texts = {token.get<std::string>()};
    if (token.is_object() && token.contains("content") && token["content"].is_string())
      texts = {token["content"].get<std::string>()};
  }
  if (looked_for) *looked_for = texts;
  for (const std::string& text : texts)
    if (const auto id = tokenizer.find(text)) return id;
  return std::nullopt;
}

}  // namespace fsdp
