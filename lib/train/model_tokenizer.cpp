#include "train/model_tokenizer.hpp"

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"

namespace fsdp {

void add_model_tokenizer_option(OptionTable& table, std::string& name) {
  table
      .text("tokenizer", "NAME", name,
            "the model's tokenizer: tokenizer.json, tokenizer.model, a folder with one of them, or bytes")
      .unset("the one in MODEL's folder, or bytes if the model has 256 tokens");
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

}  // namespace fsdp
