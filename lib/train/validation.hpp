// Validation and text samples between the updates of a run.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "generate/generator.hpp"
#include "train/decision.hpp"
#include "train/run_context.hpp"
#include "train/train_data.hpp"

namespace fsdp {

/// Returns true if the last validation was after the last update.
bool is_validated(const Progress& progress);

/// What is due after the update from which a run resumes. It was not made if the run was stopped or killed first.
struct Missed {
  bool validation = false, sample = false;
  bool certain = false;  // no earlier start has made the validation; false: there is no metrics file that would have it
};
/// Compares what is due with the checkpoint and the metrics. A validation that only the metrics have is noted in `progress`: it
/// came after the save. Nothing is due in a run that begins with a step of another folder. Collective; throws CollectiveError.
Missed find_missed(const RunContext& run, const Origin& origin, Progress& progress);

/// Reports the mean loss over `data` and notes it in the run's progress; does nothing if `data` is null. With --use-ema, it is
/// the loss of the average of the weights. If `stop` returns true on any rank, the validation ends without a result. If the
/// data cannot be read, saves first. Collective; throws CollectiveError.
Validated validate(const LoopContext& loop, const ValidData* data, const std::function<bool()>& stop = {});

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
