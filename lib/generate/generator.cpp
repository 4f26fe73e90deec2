#include "generate/generator.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/narrow.hpp"
#include "base/philox.hpp"
#include "comm/agree.hpp"
#include "nn/rope.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

/// The largest number of tokens in a step. With this many rows, matrix products reach their full speed.
constexpr std::size_t most_rows = 512;
/// The largest number of tokens for which a text reserves memory when it begins.
constexpr std::size_t most_reserved = std::size_t{1} << 20;

/// The length in bytes of the part of a text that may be shown. `ends` is true if a stop string was found.
struct StopCut {
  std::size_t length;
  bool ends;
};

/// Cuts a text before the first stop string that begins at or after byte `known`. If there is none, cuts off the end of the
/// text if it may be the beginning of a stop string.
StopCut cut_at_stop(std::string_view text, std::size_t known, const std::vector<std::string>& stop) {
  std::size_t first = std::string_view::npos, open = 0;
  for (const std::string& one : stop) {
    first = std::min(first, text.find(one, known));
    for (std::size_t n = std::min(one.size() - 1, text.size()); n > open; --n)
      if (text.ends_with(std::string_view(one).substr(0, n))) open = n;
  }
  if (first != std::string_view::npos) return {first, true};
  return {text.size() - open, false};
}

/// For models without a tokenizer.
class NoDecoder final : public TokenDecoder {
 public:
  void add(TokenId, std::string&) override {}
  void finish(std::string&) override {}
};

}  // namespace

std::string_view name_of(Finish finish) {
  return finish == Finish::length ? "length" : finish == Finish::end_token ? "end_token" : "stop_string";
}

GenerationShape generation_shape(const TransformerConfig& config, std::size_t sequences, std::size_t longest,
                                 std::size_t new_tokens) {
  const std::size_t most = config.longest_sequence(), positions = std::min(most, round_up(longest + new_tokens, 64));
  // If a text can reach the longest sequence, a step may have to run the newest half of the text again.
  const bool again = positions < longest + new_tokens || rope_class(config, positions) != 1;
  const std::size_t at_once = again ? positions : std::min(longest, positions) * sequences;
  return {{sequences, positions}, std::max(sequences, std::min(most_rows, round_up(at_once, 16)))};
}

/// A text that is being generated.
struct Generator::Text {
  GeneratedText result;
  std::vector<TokenId> tokens;  // the prompt's tokens, then the new ones
  std::size_t base = 0;         // index of the token at position 0
  std::size_t cached = 0;       // tokens [base, cached) are in the cache
  std::size_t table_class = 0;  // for which the cached keys were rotated
  std::unique_ptr<TokenDecoder> decoder;
  std::size_t shown = 0;  // the number of bytes of result.text that were shown

  std::size_t pending() const { return tokens.size() - cached; }
  std::size_t length() const { return tokens.size() - base; }
};

Generator::Generator(Executor& executor, Group& world, const TransformerConfig& config, const Tokenizer* tokenizer,
                     const GenerationOptions& options)
    : executor_(executor),
      world_(world),
      tokenizer_(tokenizer),
      options_(options),
      vocab_size_(config.vocab_size),
      sampler_(options.sampling, config.vocab_size),
      places_(executor.cache().sequences),
      logits_(executor.cache().sequences * config.vocab_size) {
  for (auto* list : {&tokens_, &sequences_, &positions_, &wanted_}) list->reserve(executor.most_rows());
  wanted_places_.reserve(places_.size());
}

Generator::~Generator() = default;

void Generator::run(const std::vector<std::vector<TokenId>>& prompts, const OnText& on_text, const OnPiece& on_piece) {
  prompts_ = &prompts, on_text_ = on_text, on_piece_ = on_piece;
  next_prompt_ = static_cast<std::size_t>(world_.rank());
  next_text_ = 0;
  while (true) {
    take_prompts();
    std::int64_t state[3] = {has_work(), narrow<std::int64_t>(done_.size()), !are_numbers_};
    world_.sum(std::span(state));
    if (state[2] > 0)
      agree(world_, [&] {
        if (!are_numbers_)
          throw RunError(
              "the model's logits are NaN (its weights are not finite, or its activations overflow in this type); use another "
              "checkpoint, or compute in fp32");
      });
    if (state[1] > 0) deliver();
    if (state[0] == 0) break;
    step();
  }
}

void Generator::take_prompts() {
  for (std::unique_ptr<Text>& place : places_) {
    if (place || next_prompt_ >= prompts_->size()) continue;
    place = std::make_unique<Text>();
    Text& text = *place;
    const std::vector<TokenId>& prompt = (*prompts_)[next_prompt_];
    expect(!prompt.empty(), "a prompt has tokens");
    text.result.prompt = next_prompt_;
    text.result.tokens.reserve(std::min(options_.max_new_tokens, most_reserved));
    text.tokens.reserve(prompt.size() + std::min(options_.max_new_tokens, most_reserved));
    text.tokens = prompt;
    text.base = text.cached = prompt.size() - std::min(prompt.size(), executor_.cache().positions);
    text.decoder = tokenizer_ ? tokenizer_->make_decoder() : std::make_unique<NoDecoder>();
    std::string known;  // not used; the decoder reads the prompt so that the text of new tokens joins it correctly
    for (const TokenId token : prompt) text.decoder->add(token, known);
    next_prompt_ += static_cast<std::size_t>(world_.size());
  }
}

bool Generator::has_work() const {
  return std::any_of(places_.begin(), places_.end(), [](const auto& place) { return place != nullptr; });
}

/// Sends texts that have ended on any rank to all ranks, which call on_text_ for them in order. Collective.
void Generator::deliver() {
  for (int rank = 0; rank < world_.size(); ++rank) {
    const bool mine = rank == world_.rank();
    std::uint64_t count = done_.size();
    world_.broadcast(&count, sizeof count, rank);
    for (std::uint64_t i = 0; i < count; ++i) {
      GeneratedText text;
      if (mine) text = std::move(done_[i]);
      std::uint64_t numbers[3] = {text.prompt, text.tokens.size(), static_cast<std::uint64_t>(text.finish)};
      world_.broadcast(numbers, sizeof numbers, rank);
      text.prompt = numbers[0], text.finish = static_cast<Finish>(numbers[2]);
      text.tokens.resize(numbers[1]);
      world_.broadcast(text.tokens.data(), text.tokens.size() * sizeof(TokenId), rank);
      text.text = world_.broadcast(std::move(text.text), rank);
      waiting_.push_back(std::move(text));
    }
  }
  done_.clear();
  while (true) {
    const auto next =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const GeneratedText& text) { return text.prompt == next_text_; });
    if (next == waiting_.end()) return;
    const GeneratedText text = std::move(*next);
    waiting_.erase(next);
    ++next_text_;
    on_text_(text);
  }
}

/// Adds rows for at most `room` tokens of the text in `place` that are not in the cache yet. If they include the last token of
/// the text, requests the logits of its row.
void Generator::add_rows(std::size_t place, std::size_t room) {
  Text& text = *places_[place];
  const std::size_t count = std::min(text.pending(), room);
  for (std::size_t i = 0; i < count; ++i, ++text.cached) {
    tokens_.push_back(text.tokens[text.cached]);
    sequences_.push_back(narrow<std::int32_t>(place));
    positions_.push_back(narrow<std::int32_t>(text.cached - text.base));
  }
  if (count == 0 || text.pending() > 0) return;
  wanted_.push_back(narrow<std::int32_t>(tokens_.size() - 1));
  wanted_places_.push_back(place);
}

/// Runs a step: first the newest token of each text whose other tokens are cached, then as many tokens of the other texts as
/// fit. If texts differ in their table class, only those in the class of the text that began first take part.
void Generator::step() {
  for (auto* list : {&tokens_, &sequences_, &positions_, &wanted_}) list->clear();
  wanted_places_.clear();
  const std::size_t most = executor_.most_rows();
  const Text* first = nullptr;
  for (const auto& place : places_) {
    if (!place) continue;
    if (const std::size_t now = executor_.table_class(place->length()); now != place->table_class)
      place->cached = place->base, place->table_class = now;
    if (!first || place->result.prompt < first->result.prompt) first = place.get();
  }
  const auto takes_part = [&](std::size_t p) { return places_[p] && places_[p]->table_class == first->table_class; };
  const std::size_t length = first ? first->length() : 0;
  for (std::size_t p = 0; p < places_.size(); ++p)
    if (takes_part(p) && places_[p]->pending() == 1) add_rows(p, most - tokens_.size());
  for (std::size_t p = 0; p < places_.size(); ++p)
    if (takes_part(p) && places_[p]->pending() > 1) add_rows(p, most - tokens_.size());
  executor_.decode({tokens_, sequences_, positions_, wanted_, length}, logits_.data());
  for (std::size_t i = 0; i < wanted_.size(); ++i)
    go_on(*places_[wanted_places_[i]], std::span(logits_).subspan(i * vocab_size_, vocab_size_));
  for (std::unique_ptr<Text>& place : places_)
    if (place && !place->decoder) place.reset();  // the text has ended
}

/// Draws and appends the next token of a text. If the sequence is full, the text continues from its newest half.
void Generator::go_on(Text& text, std::span<float> logits) {
  int others = 0;  // 1 if there is a NaN; an integer, not a bool, so that the loop is vectorized
  for (const float logit : logits) others |= logit != logit;
  are_numbers_ = are_numbers_ && others == 0;
  if (!are_numbers_) return;
  GeneratedText& result = text.result;
  const auto words = philox({narrow<std::uint32_t>(result.tokens.size()), narrow<std::uint32_t>(result.prompt), 0,
                             static_cast<std::uint32_t>(RandomSite::generation)},
                            {static_cast<std::uint32_t>(options_.seed), 0});
  // Ids that are in the vocabulary of the model but not in that of the tokenizer have no text, so they are not drawn.
  const std::size_t drawn = tokenizer_ ? std::min(logits.size(), tokenizer_->vocab_size()) : logits.size();
  const TokenId token = sampler_.draw(logits.first(drawn), text.tokens, words[0] / 4294967296.0);
  text.tokens.push_back(token);
  result.tokens.push_back(token);
  const std::size_t positions = executor_.cache().positions;
  if (text.tokens.size() - text.base > positions)
    text.base = text.cached = text.tokens.size() - std::max<std::size_t>(1, positions / 2);
  if (std::find(options_.end_tokens.begin(), options_.end_tokens.end(), token) != options_.end_tokens.end())
    return finish(text, Finish::end_token);
  text.decoder->add(token, result.text);
  const StopCut cut = cut_at_stop(result.text, text.shown, options_.stop);
  if (cut.ends) {
    result.text.resize(cut.length);
    return finish(text, Finish::stop_string);
  }
  show(text, cut.length);
  if (result.tokens.size() >= options_.max_new_tokens) finish(text, Finish::length);
}

void Generator::show(Text& text, std::size_t until) {
  if (on_piece_ && until > text.shown)
    on_piece_(text.result.prompt, std::string_view(text.result.text).substr(text.shown, until - text.shown));
  text.shown = std::max(text.shown, until);
}

void Generator::finish(Text& text, Finish why) {
  text.result.finish = why;
  if (why != Finish::stop_string) text.decoder->finish(text.result.text);
  show(text, text.result.text.size());
  text.decoder.reset();
  done_.push_back(std::move(text.result));
}

}  // namespace fsdp
