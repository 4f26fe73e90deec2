// Pieces of text, tokenized by several threads at once and handed on in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

struct TextPiece {
  std::string text;
  std::size_t cut = 0;    // the first bytes of `text` are the character before the cut, and not the piece's own
  std::uint64_t end = 0;  // where it ends in the caller's text
  bool ends_document = false;
  bool is_conversation = false;              // then tokens have a mask
  std::vector<ChatText::Span> answers = {};  // of it
  bool ends_open = false;                    // ChatText::ends_open
  std::size_t replaced = 0;                  // how many times U+FFFD has been put into it already
  std::size_t skipped = 0;                   // parts that were left out before it
  std::uint64_t first_skipped = 0;           // where the first of them begins in the caller's text
};

struct EncodedPiece {
  std::vector<TokenId> ids, mask = {};  // the mask of a conversation: 1 for tokens of answers, 0 for others; else empty
  bool ends_open = false;
  std::uint64_t end = 0;
  bool ends_document = false;
  std::size_t replaced = 0;        // how many times the text is not UTF-8, for tokenizers that need it
  std::size_t first_replaced = 0;  // bytes of the piece before the first of these
  std::size_t skipped = 0;         // as of the TextPiece
  std::uint64_t first_skipped = 0;
};

/// Memory holds as many pieces as there are threads.
class ParallelEncoder {
 public:
  using Take = std::function<void(EncodedPiece)>;
  /// `take` is called in the order of the pieces, by the thread that calls the functions below. The tokenizer must outlive
  /// this.
  ParallelEncoder(const Tokenizer& tokenizer, std::size_t threads, Take take);

  /// May take earlier pieces. Throws what tokenizing one of them threw.
  void add(TextPiece piece);
  /// Takes all that are left.
  void finish();

 private:
  EncodedPiece encode(const TextPiece& piece) const;
  std::vector<TokenId> mask_of(const TextPiece& piece, const std::vector<TokenId>& ids) const;
  void take_first();

  const Tokenizer& tokenizer_;
  std::size_t threads_;
  Take take_;
  std::deque<std::future<EncodedPiece>> under_way_;  // their destructors wait
};

}  // namespace fsdp
