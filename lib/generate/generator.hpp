// Texts that a model goes on with, for many prompts at once: a key-value cache has a place for each of some texts, and a text
// that has ended leaves its place to the next prompt. Every step gives the model the tokens that it does not know yet: whole
// prompts first, then one token of each text.
//
// At several ranks each has prompts of its own (prompt i is rank i mod N's), and all take part in every step, since a model
// that no rank holds is gathered unit by unit for it. The text of a prompt depends on the model, the options and the prompt's
// number alone, up to the rounding of sums, whose order may be another one for other numbers of rows.
//
// A text that fills the model's longest sequence goes on from its newest half: the model sees half of its sequence and more,
// with positions from 0, and what was before is forgotten. (Rotated keys could be kept, but not moved to other positions.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "fsdp/sharded_model.hpp"
#include "generate/sampler.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

struct GenerationOptions {
  SamplingOptions sampling = {};
  std::size_t max_new_tokens = 200;
  std::size_t seed = 1;
  std::vector<TokenId> end_tokens = {};  // a text ends when the model says one of them
  std::vector<std::string> stop = {};    // a text ends before one of them
};

/// Why a text ended.
enum class Finish { length, end_token, stop_string };
std::string_view name_of(Finish finish);

struct GeneratedText {
  std::size_t prompt = 0;       // its number
  std::vector<TokenId> tokens;  // new ones; the last one may be an end token, or belong to a stop string
  std::string text;             // theirs, without what ended it
  Finish finish = Finish::length;
};

/// Sizes of a plan that generates: the caches, and rows of a step.
struct GenerationShape {
  kernels::CacheShape cache;
  std::size_t rows = 0;
};
/// For prompts of `longest` tokens at most, `sequences` at a time on a rank, each with `new_tokens` more.
GenerationShape generation_shape(const TransformerConfig& config, std::size_t sequences, std::size_t longest,
                                 std::size_t new_tokens);

class Generator {
 public:
  /// `executor` is of a plan with caches; it, world and tokenizer must outlive this. Not collective.
  Generator(Executor& executor, Group& world, const TransformerConfig& config, const Tokenizer& tokenizer,
            const GenerationOptions& options);
  ~Generator();
  Generator(const Generator&) = delete;

  /// A piece of a text as soon as it is there, on the rank that generates it; whole characters.
  using OnPiece = std::function<void(std::size_t prompt, std::string_view piece)>;
  /// A whole text, on rank 0, in the order of prompts.
  using OnText = std::function<void(const GeneratedText& text)>;
  /// Goes on with each of the prompts, which have tokens, the same on every rank. Collective over world.
  void run(const std::vector<std::vector<TokenId>>& prompts, const OnText& on_text, const OnPiece& on_piece = nullptr);

 private:
  struct Text;
  void take_prompts();
  bool has_work() const;
  void deliver();
  void step();
  void add_rows(std::size_t place, std::size_t room);
  void go_on(Text& text, std::span<float> logits);
  void finish(Text& text, Finish why);
  void show(Text& text, std::size_t until);

  Executor& executor_;
  Group& world_;
  const Tokenizer& tokenizer_;
  const GenerationOptions options_;
  const std::size_t vocab_size_;  // of the model
  Sampler sampler_;
  bool are_numbers_ = true;  // what the model has said so far

  const std::vector<std::vector<TokenId>>* prompts_ = nullptr;
  OnText on_text_;
  OnPiece on_piece_;
  std::size_t next_prompt_ = 0;
  std::vector<std::unique_ptr<Text>> places_;  // of the caches: the text in each, or null
  std::vector<GeneratedText> done_;            // here, and not handed over
  std::vector<GeneratedText> waiting_;         // on rank 0: for texts before them
  std::size_t next_text_ = 0;                  // on rank 0: the number of the text that is handed out next

  std::vector<std::int32_t> tokens_, sequences_, positions_, wanted_;  // of a step
  std::vector<std::size_t> wanted_places_;                             // of each row that is wanted
  std::vector<float> logits_;
};

}  // namespace fsdp
