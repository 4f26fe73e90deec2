#include "text/tokenizer_files.hpp"

#include <algorithm>
#include <iterator>

#include "base/format.hpp"
#include "files/checksum.hpp"
#include "files/input_file.hpp"
#include "text/tokenizer_folder.hpp"

namespace fsdp {

namespace fs = std::filesystem;

namespace {

constexpr const char* file_names[] = {"tokenizer.json",
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
  return std::find(std::begin(file_names), std::end(file_names), name) != std::end(file_names);
}

std::vector<TokenizerFile> read_tokenizer_files(const fs::path& folder) {
  std::vector<TokenizerFile> files;
  for (const std::string name : file_names)
    if (name == "tokenizer_config.json") {
      if (std::string text = config_that_travels(folder); !text.empty()) files.push_back({name, std::move(text)});
    } else if (kind_of(folder / name) == PathKind::file) {
      files.push_back({name, read_text_file(folder / name, longest_file)});
    }
  return files;
}

std::vector<TokenizerFile> read_files_of_tokenizer(const std::string& name) {
  const fs::path file = find_tokenizer(name);
  if (file.empty()) return {};
  const std::string own = file.filename().string();
  if (!is_tokenizer_file(own)) {
    std::string text = read_text_file(file, longest_file);
    const bool is_json = text.starts_with('{');
    return {{is_json ? "tokenizer.json" : "tokenizer.model", std::move(text)},
            {"tokenizer_config.json", config_that_travels_alone(is_json)}};
  }
  std::vector<TokenizerFile> files = read_tokenizer_files(folder_of_tokenizer(name));
  // Remove the vocabulary files that open_tokenizer() would prefer to this one.
  std::erase_if(files, [&](const TokenizerFile& other) {
    return own != "tokenizer.json" &&
           (other.name == "tokenizer.json" || (other.name == "tokenizer.model" && own == "vocab.json"));
  });
  return files;
}

std::vector<fs::path> tokenizer_files_at(const fs::path& path) {
  const PathKind kind = path.empty() ? PathKind::missing : kind_of(path);
  std::vector<fs::path> files = {path};
  const fs::path folder = kind == PathKind::folder ? path : path.parent_path();
  if (kind == PathKind::missing || (kind == PathKind::file && !is_tokenizer_file(path.filename()))) return files;
  for (const char* const name : file_names) files.push_back(folder / name);
  files.insert(files.end(), {folder / "additional_chat_templates" / "tool_use.jinja", folder / "config.json"});
  return files;
}

std::string sum_of_tokenizer(const std::string& name) {
  const fs::path file = find_tokenizer(name);
  if (file.empty()) return "bytes";
  std::string sums = checksum_text(sum_file(file).checksum);
  if (!is_tokenizer_file(file.filename().string())) return sums;
  const fs::path folder = folder_of_tokenizer(name);
  const std::string config = config_that_travels(folder);
  if (!config.empty()) sums += " " + checksum_text(checksum(config.data(), config.size()));
  for (const char* const other : {"special_tokens_map.json", "added_tokens.json", "merges.txt"})
    if (kind_of(folder / other) == PathKind::file)
      sums += format(" {} {}", other, checksum_text(sum_file(folder / other).checksum));
  return sums;
}

bool has_tokenizer(const fs::path& folder) { return kind_of(folder) == PathKind::folder && !vocabulary_in(folder).empty(); }

std::optional<TokenId> find_end_of_text(const Tokenizer& tokenizer, std::vector<std::string>* looked_for) {
  std::vector<std::string> texts = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
  if (const auto own = tokenizer.special_tokens().find("eos_token"); own != tokenizer.special_tokens().end())
    texts = {own->second};
  if (looked_for) *looked_for = texts;
  for (const std::string& text : texts)
    if (const auto id = tokenizer.find(text)) return id;
  return std::nullopt;
}

}  // namespace fsdp
