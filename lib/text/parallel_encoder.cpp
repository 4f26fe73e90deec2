#include "text/parallel_encoder.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "text/text_cuts.hpp"
#include "text/utf8.hpp"

namespace fsdp {

ParallelEncoder::ParallelEncoder(const Tokenizer& tokenizer, std::size_t threads, Take take)
    : tokenizer_(tokenizer), threads_(threads), take_(std::move(take)) {
  expect(threads > 0, "some thread tokenizes");
}

void ParallelEncoder::add(TextPiece piece) {
  if (threads_ == 1) return take_(encode(std::move(piece)));
  group_bytes_ += piece.text.size();
  group_.push_back(std::move(piece));
  if (group_bytes_ >= bytes_of_a_group || group_.size() >= 1024) start();
}

void ParallelEncoder::start() {
  if (under_way_.size() == threads_) take_first();
  under_way_.push_back(std::async(std::launch::async, [this, group = std::exchange(group_, {})]() mutable {
    std::vector<EncodedPiece> encoded;
    for (TextPiece& piece : group) encoded.push_back(encode(std::move(piece)));
    return encoded;
  }));
  group_bytes_ = 0;
}

void ParallelEncoder::finish() {
  if (!group_.empty()) start();
  while (!under_way_.empty()) take_first();
}

void ParallelEncoder::take_first() {
  std::vector<EncodedPiece> group = under_way_.front().get();
  under_way_.pop_front();
  for (EncodedPiece& piece : group) take_(std::move(piece));
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
  if (encoded.is_conversation)
    encode_conversation(encoded);
  else
    encoded.is_tokens ? encoded.ids.swap(encoded.tokens) : tokenizer_.encode_rest(encoded.text, encoded.cut, encoded.ids);
  encoded.text = {};
  return encoded;
}

/// The mask is 1 for the tokens of answers. The first token of an answer is the first one of the whole text that differs from
/// the tokens of only the text before the answer. The last one is the token that ends the assistant's turn. The text is cut
/// before the bounds of answers, so that only the text after the last cut is tokenized again to find a bound.
void ParallelEncoder::encode_conversation(EncodedPiece& piece) const {
  const std::string_view text = piece.text;
  const CutRules& rules = tokenizer_.cuts();
  struct Cut {
    std::size_t byte = 0, token = 0;
  };
  std::vector<Cut> cuts(1);
  const auto encode_from = [&](const Cut& cut, std::size_t end, std::vector<TokenId>& ids) {
    const std::size_t before = cut.byte == 0 ? 0 : character_before(text, cut.byte);
    tokenizer_.encode_rest(text.substr(cut.byte - before, end - cut.byte + before), before, ids);
  };
  for (const TextSpan& answer : piece.answers)
    for (const std::size_t bound : {answer.begin, answer.end}) {
      const std::size_t cut = last_cut(text.substr(0, bound), cuts.back().byte, rules);
      if (cut <= cuts.back().byte) continue;
      encode_from(cuts.back(), cut, piece.ids);
      cuts.push_back({cut, piece.ids.size()});
    }
  encode_from(cuts.back(), text.size(), piece.ids);

  std::vector<TokenId> part;
  piece.mask.assign(piece.ids.size(), 0);
  const auto tokens_before = [&](std::size_t byte, bool must_end) {
    const Cut& cut = *std::prev(
        std::upper_bound(cuts.begin(), cuts.end(), byte, [](std::size_t one, const Cut& other) { return one < other.byte; }));
    part.clear();
    encode_from(cut, byte, part);
    const auto first = piece.ids.begin() + static_cast<std::ptrdiff_t>(cut.token);
    const auto same = std::mismatch(part.begin(), part.end(), first, piece.ids.end()).first;
    if (must_end && same != part.end())
      throw UserError(
          "the tokenizer joins the end of an answer with the text after it (the chat template is for another tokenizer); give "
          "the tokenizer that the template belongs to");
    return cut.token + static_cast<std::size_t>(same - part.begin());
  };
  std::vector<std::size_t> ends;  // of answers, in tokens
  for (const TextSpan& answer : piece.answers) {
    const std::size_t begin = tokens_before(answer.begin, false), end = tokens_before(answer.end, true);
    for (std::size_t i = begin; i < end; ++i) piece.mask[i] = 1;
    if (std::find(piece.answer_ends.begin(), piece.answer_ends.end(), answer.end) != piece.answer_ends.end())
      ends.push_back(end);
  }
  piece.answer_ends = std::move(ends);
}

}  // namespace fsdp
