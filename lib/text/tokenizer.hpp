// The interface of tokenizers: converts text to tokens and back.
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

/// Converts tokens to text one by one. The bytes of an incomplete character are held back until later tokens complete it.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Adds a token, and appends to `text` the characters that are now complete. Special tokens and ids without a token are
  /// skipped.
  virtual void add(TokenId id, std::string& text) = 0;
  /// Appends what was held back, with U+FFFD for an incomplete character. The next add() begins a new text.
  virtual void finish(std::string& text) = 0;
};

/// Immutable; may be used by several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Appends the tokens of a text. The tokens equal those of Hugging Face's tokenizers with add_special_tokens=False: nothing
  /// is added before or after the text. If needs_utf8(), bytes that are not UTF-8 count as U+FFFD, as with
  /// Python's errors="replace".
  virtual void encode(std::string_view text, std::vector<TokenId>& ids) const = 0;
  virtual std::unique_ptr<TokenDecoder> make_decoder() const = 0;
  /// The places at which a text may be cut. The tokens of the whole text are then the tokens of text[:cut], made by encode(),
  /// followed by the tokens of text[cut:], made by encode_rest().
  const CutRules& cuts() const { return cuts_; }

  /// Returns true if encode() replaces bytes that are not UTF-8.
  virtual bool needs_utf8() const { return true; }
  /// The largest id plus one.
  virtual std::size_t vocab_size() const = 0;
  /// The id of the token with exactly this text. Special tokens such as "<|endoftext|>" are found, too.
  virtual std::optional<TokenId> find(std::string_view token) const = 0;
  /// The text of a token, for messages (the inverse of find()). Empty if there is no token with this id.
  virtual std::string spelling(TokenId) const { return {}; }
  /// The tokens that the model expects before and after a text, such as "<s>".
  const std::vector<TokenId>& before_text() const { return before_; }
  const std::vector<TokenId>& after_text() const { return after_; }
  /// A short description: "byte-level BPE of 49152 tokens".
  virtual std::string description() const = 0;

  std::vector<TokenId> encode(std::string_view text) const;
  /// Appends the tokens of the part of a longer text after a cut. `text` is the character before the cut, which has `cut`
  /// bytes, followed by this part. If the part is the beginning of the longer text, `cut` is 0.
  void encode_rest(std::string_view text, std::size_t cut, std::vector<TokenId>& ids) const;
  std::string decode(const std::vector<TokenId>& ids) const;

  /// The texts of the special tokens that the tokenizer's files name, by name ("bos_token", "eos_token", "pad_token", ...).
  /// Each text is a token of the vocabulary.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }
  /// The id of a named special token: special_token("eos_token").
  std::optional<TokenId> special_token(const std::string& name) const;
  /// Warnings about entries of the tokenizer's files that are not used here, or that transformers may treat differently.
  const std::vector<std::string>& warnings() const { return warnings_; }

 protected:
  CutRules cuts_;
  std::vector<TokenId> before_, after_;
  std::map<std::string, std::string> special_tokens_;
  std::vector<std::string> warnings_;
};

/// Makes a tokenizer whose tokens are the bytes of a text, with ids 0 to 255. The text need not be UTF-8.
std::unique_ptr<Tokenizer> make_byte_tokenizer();
/// Makes the tokenizer that describe_tokenizer() describes. Its model must be byte-pair encoding (of bytes or of characters) or
/// Unigram. Throws UserError if the file cannot be read, is of another kind or has an unknown part, which the message names.
std::unique_ptr<Tokenizer> read_tokenizer(const std::filesystem::path& file, bool is_json);

/// The path of the file that open_tokenizer(name) opens; empty if `name` is "bytes". Throws UserError if there is none.
std::filesystem::path find_tokenizer(const std::string& name);
/// The folder of the file that find_tokenizer(name) returns; empty if `name` is "bytes". Throws what find_tokenizer() throws.
std::filesystem::path folder_of_tokenizer(const std::string& name);
/// Opens a tokenizer. `name` is "bytes", the path of a file, or a folder with a tokenizer.json, tokenizer.model or vocab.json
/// (if it has several of them, the first in this order is opened). The files next to a tokenizer.json, tokenizer.model or
/// vocab.json are read, too; a file with any other name is read without the files next to it. Throws UserError.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

}  // namespace fsdp
