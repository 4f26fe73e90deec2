// Continues texts with a transformer, as transformers' generate() does. docs/api-transformers.md has an example.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/fully_sharded.hpp"
#include "api/job.hpp"

namespace fsdp {

/// The sampling options of a call. Their names and meanings are those of transformers' GenerationConfig. If an optional field
/// has no value, or if there are no stop_strings, the value comes from generation_config.json of the model, as in
/// fsdp-generate. If that file does not set it either, all tokens can be drawn with the probabilities of the model.
struct GenerationConfig {
  std::size_t max_new_tokens = 200;               // the most new tokens of a text
  std::optional<double> temperature = {};         // divides the logits; 0: always the most likely token
  std::optional<std::size_t> top_k = {};          // draw one of the top_k most likely tokens; 0: of all
  std::optional<double> top_p = {};               // draw one of the most likely tokens that together have this probability
  std::optional<double> repetition_penalty = {};  // makes tokens that are in the prompt or the text less likely; 1: does not
  std::optional<std::vector<std::int32_t>> eos_token_id = {};  // tokens that end a text; no value: the model's own; {}: none
  std::vector<std::string> stop_strings = {};                  // a text ends before any of these; requires a tokenizer
  std::uint64_t seed = 1;                                      // the same seed gives the same texts; 32 bits
};

/// A text that continues a prompt.
struct GeneratedTokens {
  std::vector<std::int32_t> tokens;  // the new tokens; the last ones may be an end token or part of a stop string
  std::string text;    // the text of the new tokens, without end token and stop string; empty if there is no tokenizer
  std::string finish;  // why the text ends: "length", "end_token" or "stop_string"
};

/// Options of a TextGenerator that reads a model. docs/api-options.md explains each option.
struct TextGeneratorOptions {
  std::size_t batch_size = 8;    // texts that a rank generates at the same time
  std::size_t positions = 1024;  // the most tokens of a prompt and its text; at most the model's longest sequence is used
  std::string sharding_strategy = "FULL_SHARD";  // as in FsdpOptions
  std::string param_dtype = "fp32";              // the type of parameters and of computation: "fp32", "bf16" or "fp16"
  std::filesystem::path adapter = {};            // adapters, used over a base of the type in their training; empty: none
  std::string base_dtype = {};  // "int8" or "nf4": type of the blocks' matrices; empty: as adapters were trained
  std::string tokenizer = {};   // a folder, a file or "bytes"; empty: the model's own
  bool use_ema = false;         // reads the average of the parameters, which a checkpoint can have
};

/// Generates texts with sharded parameters: units are gathered one after another in each step, as in training. The functions
/// are collective over the job. If a function fails on one rank or on all, all ranks throw the same CollectiveError.
class TextGenerator {
 public:
  /// Reads the model `model`: a folder of save(), a file or folder of save_full(), or a Hugging Face folder. All ranks must
  /// pass the same arguments. Throws CollectiveError if it cannot be read, or is a Sequential.
  TextGenerator(Job& job, const std::filesystem::path& model, const TextGeneratorOptions& options = {});
  /// Generates with the parameters that `model` has at the time of each call, between updates. FsdpOptions::generate_positions
  /// of `model` must not be 0. A rank generates FsdpOptions::batch_size texts at the same time. Tokenizer, end tokens and
  /// generation_config.json are those of the Hugging Face folder from which `model` has loaded its parameters; `tokenizer`
  /// replaces this tokenizer. `use_ema`: generates with the average of the parameters. `model` must outlive this object.
  explicit TextGenerator(FullyShardedDataParallel& model, const std::string& tokenizer = {}, bool use_ema = false);
  TextGenerator(const TextGenerator&) = delete;
  ~TextGenerator();

  /// Continues each prompt. All ranks must pass the same prompts, and all receive all results, in the order of the prompts.
  /// With N ranks, rank i mod N generates the text of prompt i. The tokens are those that fsdp-generate generates with the same
  /// options, and do not depend on the number of ranks apart from rounding. Throws CollectiveError if the ranks pass different
  /// arguments, if an option or token is out of range, if a prompt is empty or has more than `positions` tokens, or if a prompt
  /// and max_new_tokens have, unless `positions` is the model's longest sequence. A text that reaches that length continues
  /// from the newest half of its tokens.
  std::vector<GeneratedTokens> generate(const std::vector<std::vector<std::int32_t>>& prompts,
                                        const GenerationConfig& config = {});
  /// The same for texts. Begins each prompt with the tokens that the tokenizer puts before a text, such as "<s>". Throws
  /// CollectiveError if there is no tokenizer.
  std::vector<GeneratedTokens> generate_text(const std::vector<std::string>& prompts, const GenerationConfig& config = {});

  /// What fsdp-generate would warn of when it opens the model, such as a tokenizer with more tokens than the model. Not
  /// collective.
  const std::vector<std::string>& warnings() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fsdp
