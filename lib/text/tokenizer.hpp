// Text to tokens and back.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.hpp"
#include "text/text_cuts.hpp"

namespace fsdp {

/// Text of tokens that come one after the other. What is handed out are whole characters.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Appends what has become whole. Tokens that say something to the model alone, and ids that are none, are left out.
  virtual void add(TokenId id, std::string& text) = 0;
  /// Appends what is left, with U+FFFD for a character that did not become whole; then the next text may begin.
  virtual void finish(std::string& text) = 0;
};

/// Immutable; may be used by several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the tokens of a text, those of Hugging Face's tokenizers without add_special_tokens: nothing is put before or
  /// behind it. What is not UTF-8 counts as U+FFFD, as if the text had been read with errors="replace".
  virtual void encode(std::string_view text, std::vector<TokenId>& ids) const = 0;
  virtual std::unique_ptr<TokenDecoder> make_decoder() const = 0;
  /// Where texts may be cut for it: the tokens of a text are those of text[:cut] by encode(), and then those that encode_rest()
  /// gives of what follows.
  virtual const CutRules& cuts() const = 0;

  /// Whether bytes that are not UTF-8 become something else.
  virtual bool needs_utf8() const { return true; }
  /// One more than the largest id.
  virtual std::size_t vocab_size() const = 0;
  /// The token of exactly this text, special ones included: "<|endoftext|>".
  virtual std::optional<TokenId> find(std::string_view token) const = 0;
  /// The text by which find() finds an id, for messages; empty if there is none.
  virtual std::string spelling(TokenId) const { return {}; }
  /// What belongs before and behind a text that is given to the model: "<s>".
  virtual const std::vector<TokenId>& before_text() const = 0;
  virtual const std::vector<TokenId>& behind_text() const = 0;
  /// "byte-level BPE of 49152 tokens"
  virtual std::string description() const = 0;

  std::vector<TokenId> encode(std::string_view text) const;
  /// Appends the tokens of text[cut:], as they are in a text that goes on there. `text` begins with the character before the
  /// cut, or `cut` is 0 and nothing stands before it.
  void encode_rest(std::string_view text, std::size_t cut, std::vector<TokenId>& ids) const;
  std::string decode(const std::vector<TokenId>& ids) const;

  /// Special tokens that its files name, by these names: "bos_token", "eos_token", "pad_token", ... Their texts are tokens.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }
  /// The id of one of them: special_token("eos_token").
  std::optional<TokenId> special_token(const std::string& name) const;
  /// Entries of its files that are not used, or that may mean something elsewhere.
  const std::vector<std::string>& warnings() const { return warnings_; }

 protected:
  std::map<std::string, std::string> special_tokens_;
  std::vector<std::string> warnings_;
};

/// Every byte of a text is a token, 0 to 255; the text need not be UTF-8.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// Reads one file, a tokenizer.json of Hugging Face's tokenizers: byte-pair encoding over bytes or characters, or Unigram.
/// Throws UserError for a file that cannot be read, is something else, or has an unknown part, which the message
/// names.
std::unique_ptr<Tokenizer> read_tokenizer_json(const std::filesystem::path& file);
/// Reads a tokenizer.json, tokenizer.model or vocab.json with the files next to it, as transformers' AutoTokenizer does
/// (tokenizer_folder.hpp).
std::unique_ptr<Tokenizer> read_tokenizer_folder(const std::filesystem::path& file);
/// A model of SentencePiece (Kudo and Richardson 2018), run by its own library. Throws UserError.
std::unique_ptr<Tokenizer> read_sentencepiece(const std::filesystem::path& file);

/// The file that open_tokenizer() opens; empty for bytes. Throws UserError if there is none.
std::filesystem::path find_tokenizer(const std::string& name);
/// Where the files beside it lie; empty for bytes. Throws the same.
std::filesystem::path folder_of_tokenizer(const std::string& name);
/// Opens "bytes", a tokenizer.json, tokenizer.model or vocab.json, or the first of these in a folder, with the files next to
/// it. A file of another name is read without the files next to it. Throws UserError.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

}  // namespace fsdp
