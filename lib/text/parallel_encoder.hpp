// Tokenizes pieces of text in several threads and returns them in order.
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
  std::size_t cut = 0;    // the first `cut` bytes of `text` are the character before the cut; they do not belong to the piece
  std::uint64_t end = 0;  // the position of the piece's end in the caller's text
  bool ends_document = false;
  bool is_conversation = false;              // if true, the tokens get a mask
  std::vector<ChatText::Span> answers = {};  // the conversation's answers
  bool ends_open = false;                    // as in ChatText
  std::size_t replaced = 0;                  // the number of U+FFFD that the caller has put into the text
  std::size_t skipped = 0;                   // the number of JSON records before this piece that were left out
  std::uint64_t first_skipped = 0;           // the position of the first of these in the caller's text
};

struct EncodedPiece {
  std::vector<TokenId> ids, mask = {};  // mask: 1 for tokens of answers, 0 for others; empty if the piece is no conversation
  bool ends_open = false;
  std::uint64_t end = 0;
  bool ends_document = false;
  std::size_t replaced = 0;        // the number of places that are not UTF-8, if the tokenizer needs UTF-8
  std::size_t first_replaced = 0;  // the position of the first of these in the piece
  std::size_t skipped = 0;         // the same as in the TextPiece
  std::uint64_t first_skipped = 0;
};

/// Tokenizes each piece in a thread of its own, at most `threads` pieces at once. Only these are in memory.
class ParallelEncoder {
 public:
  using Take = std::function<void(EncodedPiece)>;
  /// `take` receives the pieces in order, in the thread that calls the functions below. The tokenizer must outlive this object.
  ParallelEncoder(const Tokenizer& tokenizer, std::size_t threads, Take take);

  /// Starts to tokenize a piece. May call `take` for earlier pieces; if tokenizing one of them failed, rethrows its exception.
  void add(TextPiece piece);
  /// Calls `take` for all remaining pieces.
  void finish();

 private:
  EncodedPiece encode(const TextPiece& piece) const;
  std::vector<TokenId> mask_of(const TextPiece& piece, const std::vector<TokenId>& ids) const;
  void take_first();

  const Tokenizer& tokenizer_;
  std::size_t threads_;
  Take take_;
  std::deque<std::future<EncodedPiece>> under_way_;  // a future's destructor waits for its thread
};

}  // namespace fsdp
