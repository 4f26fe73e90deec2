// Generates text for many prompts at once. The key-value cache has a fixed number of slots ("places"), one for each text in
// progress. When a text ends, the next prompt takes its slot. A step runs the model on tokens that are not in the cache yet,
// one row per token. For a new text these are the tokens of the prompt; after that, the text adds one new token per step.
//
// With N ranks, prompt i belongs to rank i mod N. All ranks take part in every step, because the sharded model is gathered unit
// by unit. The text of a prompt depends only on the model, the options and the number of the prompt, apart from rounding: the
// order of sums may depend on the number of rows in a step.
//
// When a text reaches the longest sequence of the model, generation continues from the newest half of its tokens. The earlier
// tokens are dropped, so the model always has at least half a sequence as context. The kept tokens get new positions from 0,
// and their keys are computed again, because keys depend on the positions.
//
// If a model's rotary frequencies depend on the length of the text (PositionTables::table_class()), its keys are also computed
// again whenever the frequencies change: once for "longrope", and for each token beyond max_position_embeddings for "dynamic".
// A step then has only texts with the same frequencies. So every token has the logits of a pass over the whole text.
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
#include "generate/sampler.hpp"
#include "run/sharded_model.hpp"
#include "text/tokenizer.hpp"

namespace fsdp {

struct GenerationOptions {
  SamplingOptions sampling = {};
  std::size_t max_new_tokens = 200;
  std::size_t seed = 1;
  std::vector<TokenId> end_tokens = {};  // a text ends when the model generates one of these
  std::vector<std::string> stop = {};    // a text ends before any of these strings
};

/// The reason for which a text ended.
enum class Finish { length, end_token, stop_string };
std::string_view name_of(Finish finish);

struct GeneratedText {
  std::size_t prompt = 0;       // the prompt's number
  std::vector<TokenId> tokens;  // the new tokens; the last ones may be an end token or part of a stop string
  std::string text;             // the text of the new tokens, without the end token or stop string
  Finish finish = Finish::length;
};

/// The sizes of a plan that generates text: the shape of its key-value caches, and the largest number of rows (tokens) in a
/// step.
struct GenerationShape {
  kernels::CacheShape cache;
  std::size_t rows = 0;
};
/// The sizes for prompts of at most `longest` tokens, each continued by up to `new_tokens` tokens. A rank generates `sequences`
/// texts at a time.
GenerationShape generation_shape(const TransformerConfig& config, std::size_t sequences, std::size_t longest,
                                 std::size_t new_tokens);

class Generator {
 public:
  /// `executor` must run a plan with key-value caches. `executor`, `world` and `tokenizer` must outlive this object. If
  /// `tokenizer` is null, the texts are empty. Not collective.
  Generator(Executor& executor, Group& world, const TransformerConfig& config, const Tokenizer* tokenizer,
            const GenerationOptions& options);
  ~Generator();
  Generator(const Generator&) = delete;

  /// Receives a piece of a text (whole characters) as soon as it is generated, on the rank that generates it.
  using OnPiece = std::function<void(std::size_t prompt, std::string_view piece)>;
  /// Receives a whole text, on all ranks, in the order of the prompts.
  using OnText = std::function<void(const GeneratedText& text)>;
  /// Continues each prompt. A prompt must have at least one token, and the prompts must be the same on every rank. Collective
  /// over world.
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
  const Tokenizer* const tokenizer_;
  const GenerationOptions options_;
  const std::size_t vocab_size_;  // the model's vocabulary size
  Sampler sampler_;
  bool are_numbers_ = true;  // becomes false when a logit is NaN

  const std::vector<std::vector<TokenId>>* prompts_ = nullptr;
  OnText on_text_;
  OnPiece on_piece_;
  std::size_t next_prompt_ = 0;
  std::vector<std::unique_ptr<Text>> places_;  // by slot of the caches: its text, or null
  std::vector<GeneratedText> done_;            // texts that ended on this rank and are not yet sent to all ranks
  std::vector<GeneratedText> waiting_;         // texts that wait for texts with lower numbers
  std::size_t next_text_ = 0;                  // the number of the text for the next call of on_text_

  std::vector<std::int32_t> tokens_, sequences_, positions_, wanted_;  // the rows of a step; wanted_: those that need logits
  std::vector<std::size_t> wanted_places_;                             // by row in wanted_: the index of its text in places_
  std::vector<float> logits_;
};

}  // namespace fsdp
