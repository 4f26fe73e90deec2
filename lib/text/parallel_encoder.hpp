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

/// A text, or a conversation. `counts` also counts the JSON records before it that were left out.
struct TextPiece : ChatText {
  std::size_t cut = 0;      // `text` begins with the character before the piece, in `cut` bytes that are not of the piece
  std::uint64_t begin = 0;  // the position of a JSON record in the caller's text
  std::uint64_t end = 0;    // the position of the piece's end in the caller's text
  bool ends_document = false;
  bool is_tokens = false;  // the piece is `tokens`, and has no text
  std::vector<TokenId> tokens = {};
  bool is_conversation = false;  // if true, the tokens get a mask
  std::size_t replaced = 0;      // the number of invalid places that the caller has replaced by U+FFFD
};

/// A piece without its text. `replaced` is the number of places with invalid UTF-8, if the tokenizer needs UTF-8, and
/// `answer_ends` is in tokens.
struct EncodedPiece : TextPiece {
  std::vector<TokenId> ids = {}, mask = {};  // mask: 1 for tokens of answers, 0 for others; empty if it is no conversation
  std::size_t first_replaced = 0;            // the position of the first invalid place in the piece
};

/// Tokenizes pieces in at most `threads` threads at once, and keeps few other pieces in memory. Pieces that follow each other
/// share a thread until they have `bytes_of_a_group`, because starting one takes as long as tokenizing some rows.
class ParallelEncoder {
 public:
  using Take = std::function<void(EncodedPiece)>;
  /// `take` receives the pieces in order, in the thread that calls the functions below. The tokenizer must outlive this object.
  ParallelEncoder(const Tokenizer& tokenizer, std::size_t threads, Take take);

  /// Adds a piece. May call `take` for earlier pieces; if tokenizing one of them failed, rethrows its exception.
  void add(TextPiece piece);
  /// Calls `take` for all remaining pieces.
  void finish();

 private:
  static constexpr std::size_t bytes_of_a_group = std::size_t{32} << 10;
  EncodedPiece encode(TextPiece piece) const;
  void encode_conversation(EncodedPiece& piece) const;
  void start();
  void take_first();

  const Tokenizer& tokenizer_;
  std::size_t threads_;
  Take take_;
  std::vector<TextPiece> group_;  // pieces that wait for a thread
  std::size_t group_bytes_ = 0;
  std::deque<std::future<std::vector<EncodedPiece>>> under_way_;  // a future's destructor waits for its thread
};

}  // namespace fsdp
