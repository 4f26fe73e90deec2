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
  std::size_t cut = 0;    // `text` begins with the character before the piece, in `cut` bytes, which do not belong to the piece
  std::uint64_t end = 0;  // the position of the piece's end in the caller's text
  bool ends_document = false;
  bool is_conversation = false;               // if true, the tokens get a mask
  std::vector<TextSpan> answers = {};         // the byte ranges of the conversation's answers
  bool ends_open = false;                     // the last answer has no token that ends the turn
  std::vector<std::size_t> answer_ends = {};  // the end of each answer (ChatText)
  std::size_t replaced = 0;                   // the number of invalid places that the caller has replaced by U+FFFD
  std::uint64_t begin = 0;                    // the position of a JSON record in the caller's text
  DataCounts counts = {};                     // of the piece, and the JSON records before it that were left out
};

struct EncodedPiece {
  std::vector<TokenId> ids, mask = {};  // mask: 1 for tokens of answers, 0 for others; empty if the piece is no conversation
  bool ends_open = false;
  std::uint64_t end = 0;
  bool ends_document = false;
  std::size_t replaced = 0;                   // the number of places with invalid UTF-8, if the tokenizer needs UTF-8
  std::size_t first_replaced = 0;             // the position of the first such place in the piece
  std::vector<std::size_t> answer_ends = {};  // in tokens
  std::uint64_t begin = 0;                    // copied from the TextPiece, like all members without a comment
  DataCounts counts = {};
};

/// Tokenizes each piece in a thread of its own, at most `threads` pieces at once, and keeps no other pieces in memory.
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
  void make_mask(const TextPiece& piece, EncodedPiece& encoded) const;
  void take_first();

  const Tokenizer& tokenizer_;
  std::size_t threads_;
  Take take_;
  std::deque<std::future<EncodedPiece>> under_way_;  // pieces in progress; a future's destructor waits for its thread
};

}  // namespace fsdp
