// What a run does with its model between updates: it validates it, and prints what it says.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "generate/generator.hpp"
#include "train/run_context.hpp"
#include "train/saver.hpp"
#include "train/train_data.hpp"

namespace fsdp {

/// Reports the mean loss over `data`, which may be null, unless `stop` says on some rank that it is to be left off. If the data
/// cannot be read, saves first. Collective; throws CollectiveError.
void validate(const LoopContext& loop, const ValidData* data, Saver& saver, const std::function<bool()>& stop = {});

/// What samples of what the model says begin with.
struct SamplePrompt {
  std::unique_ptr<Tokenizer> tokenizer;  // null: there are no samples
  std::vector<TokenId> tokens, end;
};
/// Collective; throws CollectiveError.
SamplePrompt make_sample_prompt(const RunContext& run, const Origin& origin);

class TextSampler {
 public:
  TextSampler(const LoopContext& loop, const SamplePrompt& prompt);
  /// Prints what the model says, if there are samples. Collective.
  void run();

 private:
  const LoopContext& loop_;
  const SamplePrompt& prompt_;
  const std::unique_ptr<Generator> generator_;
};

}  // namespace fsdp
