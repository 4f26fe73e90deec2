#include "text/parallel_encoder.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "text/utf8.hpp"

namespace fsdp {

ParallelEncoder::ParallelEncoder(const Tokenizer& tokenizer, std::size_t threads, Take take)
    : tokenizer_(tokenizer), threads_(threads), take_(std::move(take)) {
  expect(threads > 0, "some thread tokenizes");
}

void ParallelEncoder::add(TextPiece piece) {
  if (threads_ == 1) return take_(encode(std::move(piece)));
  if (under_way_.size() == threads_) take_first();
  under_way_.push_back(
      std::async(std::launch::async, [this, piece = std::move(piece)]() mutable { return encode(std::move(piece)); }));
}

void ParallelEncoder::finish() {
  while (!under_way_.empty()) take_first();
}

void ParallelEncoder::take_first() {
  EncodedPiece piece = under_way_.front().get();
  under_way_.pop_front();
  take_(std::move(piece));
}

EncodedPiece ParallelEncoder::encode(TextPiece piece) const {
  EncodedPiece encoded{std::move(piece)};
  if (tokenizer_.needs_utf8()) {
    const std::string_view own = std::string_view(encoded.text).substr(encoded.cut);
    if (const std::size_t first = valid_until(own); first < own.size()) {
      encoded.first_replaced = first;
      with_replacements(own.substr(first), &encoded.replaced);
    }
  }
  encoded.is_tokens ? encoded.ids.swap(encoded.tokens) : tokenizer_.encode_rest(encoded.text, encoded.cut, encoded.ids);
  if (encoded.is_conversation) make_mask(encoded);
  encoded.text = {};
  return encoded;
}

/// The mask is 1 for the tokens of answers. The first token of an answer is the first one of the whole text that differs from
/// the tokens of only the text before the answer. The last one is the token that ends the assistant's turn.
void ParallelEncoder::make_mask(EncodedPiece& piece) const {
  const std::vector<TokenId>& ids = piece.ids;
  std::vector<TokenId> part;
  std::vector<std::size_t> ends;  // of answers, in tokens
  piece.mask.assign(ids.size(), 0);
  const auto tokens_before = [&](std::size_t byte) {
    part.clear();
    tokenizer_.encode_rest(std::string_view(piece.text).substr(0, byte), 0, part);
    return static_cast<std::size_t>(std::mismatch(part.begin(), part.end(), ids.begin(), ids.end()).first - part.begin());
  };
  for (const TextSpan& answer : piece.answers) {
    const std::size_t begin = tokens_before(answer.begin), end = tokens_before(answer.end);
    if (end < part.size())
      throw UserError(
          "the tokenizer joins the end of an answer with the text after it (the chat template is for another tokenizer); give "
          "the tokenizer that the template belongs to");
    for (std::size_t i = begin; i < end; ++i) piece.mask[i] = 1;
    if (std::find(piece.answer_ends.begin(), piece.answer_ends.end(), answer.end) != piece.answer_ends.end())
      ends.push_back(end);
  }
  piece.answer_ends = std::move(ends);
}

}  // namespace fsdp
