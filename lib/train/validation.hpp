// Validation and text samples between the updates of a run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "generate/generator.hpp"
#include "train/run_context.hpp"
#include "train/saver.hpp"
#include "train/train_data.hpp"

namespace fsdp {

/// Notes the loss of a validation. Returns true if it is the smallest so far, which a loss that is not finite is not.
bool note_validation(std::optional<Validations>& all, std::uint64_t update, double loss);

/// Reports the mean loss over `data`, which may be null. With --use-ema, it is that of the average of the weights. Stops
/// without a result if `stop` returns true on any rank. If the data cannot be read, saves first. Notes the result in the run's
/// progress, and returns true if the loss is the smallest so far. Collective; throws CollectiveError.
bool validate(const LoopContext& loop, const ValidData* data, Saver& saver, const std::function<bool()>& stop = {});

/// The prompt of text samples.
struct SamplePrompt {
  std::unique_ptr<Tokenizer> tokenizer;  // null: no samples
  std::vector<TokenId> tokens, end;      // the tokens of the prompt, and those that end a sample
};
/// Tokenizes --sample-prompt. Collective; throws CollectiveError.
SamplePrompt make_sample_prompt(const RunContext& run, const Origin& origin);

class TextSampler {
 public:
  TextSampler(const LoopContext& loop, const SamplePrompt& prompt);
  /// Generates and prints a text if `prompt` has a tokenizer. Collective.
  void run();

 private:
  const LoopContext& loop_;
  const SamplePrompt& prompt_;
  const std::unique_ptr<Generator> generator_;
};

}  // namespace fsdp
