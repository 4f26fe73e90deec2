#include "text/tokenizer.hpp"

#include "base/error.hpp"
#include "base/format.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "text/tokenizer_folder.hpp"
#include "text/utf8.hpp"

namespace fsdp {

namespace {

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() { cuts_.anywhere = true; }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<TokenId>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  std::unique_ptr<TokenDecoder> make_decoder() const override { return std::make_unique<Decoder>(); }
  bool needs_utf8() const override { return false; }
  std::size_t vocab_size() const override { return 256; }
  std::optional<TokenId> find(std::string_view token) const override {
    return token.size() == 1 ? std::optional<TokenId>(static_cast<unsigned char>(token[0])) : std::nullopt;
  }
  std::string description() const override { return "bytes"; }

 private:
  struct Decoder : TokenDecoder {
    void add(TokenId id, std::string& text) override {
      if (id < 0 || id > 255) return;
      open += static_cast<char>(id);
      const std::size_t whole = without_open_end(open);
      text += with_replacements(std::string_view(open).substr(0, whole));
      open.erase(0, whole);
    }
    void finish(std::string& text) override {
      text += with_replacements(open);
      open.clear();
    }
    std::string open;
  };
};

}  // namespace

std::vector<TokenId> Tokenizer::encode(std::string_view text) const {
  std::vector<TokenId> ids;
  encode(text, ids);
  return ids;
}

void Tokenizer::encode_rest(std::string_view text, std::size_t cut, std::vector<TokenId>& ids) const {
  if (cut == 0) return encode(text, ids);
  const std::size_t before = encode(text.substr(0, cut)).size();
  const std::vector<TokenId> all = encode(text);
  expect(before <= all.size(), "tokens do not reach across a cut");
  ids.insert(ids.end(), all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids) const {
  const auto decoder = make_decoder();
  std::string text;
  for (const TokenId id : ids) decoder->add(id, text);
  decoder->finish(text);
  return text;
}

std::optional<TokenId> Tokenizer::special_token(const std::string& name) const {
  const auto found = special_tokens_.find(name);
  return found == special_tokens_.end() ? std::nullopt : find(found->second);
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::filesystem::path find_tokenizer(const std::string& name) {
  if (name == "bytes") return {};
  std::filesystem::path path = name;
  switch (kind_of(path)) {
    case PathKind::missing:
      throw UserError(
          format("there is no tokenizer '{}' (No such file or directory); give a tokenizer.json, a tokenizer.model, a "
                 "vocab.json, a folder with one of them, or bytes",
                 name));
    case PathKind::folder:
      path = vocabulary_in(path);
      if (path.empty())
        throw UserError(format(
            "'{}' has no tokenizer.json, tokenizer.model or vocab.json; fetch one of them, or give another tokenizer", name));
      break;
    case PathKind::file:
    case PathKind::other:
      break;
  }
  return path;
}

std::filesystem::path folder_of_tokenizer(const std::string& name) {
  const std::filesystem::path path = find_tokenizer(name);
  return path.empty() ? path : folder_of(path);
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  const std::filesystem::path path = find_tokenizer(name);
  if (path.empty()) return make_byte_tokenizer();
  const InputFile file(path);
  if (file.size() == 0)
    throw UserError(
        format("'{}' is no tokenizer that can be used (it is empty); fetch it again, or give another", path.string()));
  char first = 0;
  file.read(0, &first, 1);
  const std::string own = path.filename().string();
  const bool is_json = first == '{' || path.extension() == ".json";
  return read_tokenizer(path, is_vocabulary_name(own) ? own == "tokenizer.json" : is_json);
}

}  // namespace fsdp
