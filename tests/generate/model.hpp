// Generates texts with a small model with random weights: sharded over ranks, and as a reference with the whole text for each
// token.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "comm/threads/threads.hpp"
#include "generate/generator.hpp"
#include "kernels/threads.hpp"
#include "nn/families.hpp"
#include "nn/model_run.hpp"
#include "run/sharded_model.hpp"

namespace fsdp::test {

/// A model with learned positions, and as many key/value heads as query heads.
inline TransformerConfig small_gpt2() {
  TransformerConfig c;
  c.vocab_size = 256, c.max_positions = 96, c.width = 36, c.layers = 3, c.heads = c.kv_heads = 3, c.head_size = 12,
  c.ffn_width = 70;
  return c;
}
/// A model with rotary positions and grouped queries.
inline TransformerConfig small_llama() {
  TransformerConfig c = find_family("llama").defaults;
  c.vocab_size = 256, c.max_positions = 96, c.width = 48, c.layers = 3, c.heads = 6, c.kv_heads = 2, c.head_size = 8,
  c.ffn_width = 70;
  return c;
}

/// The weights of a model in memory.
class WeightSource : public TensorSource {
 public:
  explicit WeightSource(const ModelRun& run) : run_(run) {}
  StoredModel model() const override { return run_.model.config(); }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const Parameter& parameter : run_.model.parameters()) all.push_back(parameter.name);
    return all;
  }
  bool has_state(const std::string& state, const std::string& name) const override {
    return state == parameters_state && index(name) < run_.weights.size();
  }
  Shape state_shape(const std::string&, const std::string& name) const override {
    return run_.model.parameters()[index(name)].shape;
  }
  void read_state(const std::string&, const std::string& name, Range range, float* out) const override {
    std::copy_n(run_.weights[index(name)].data() + range.begin, range.size(), out);
  }
  std::size_t bytes_read() const override { return 0; }
  std::string description() const override { return "weights in memory"; }

 private:
  std::size_t index(const std::string& name) const {
    std::size_t p = 0;
    while (p < run_.weights.size() && run_.model.parameters()[p].name != name) ++p;
    return p;
  }
  const ModelRun& run_;
};

/// Continues a text with the most likely tokens, using the whole text for each token.
inline std::vector<TokenId> greedy(ModelRun& run, std::vector<TokenId> tokens, std::size_t count) {
  std::vector<TokenId> added;
  std::vector<float> logits(run.model.config().vocab_size);
  while (added.size() < count) {
    const StageContext context = run.context({1, tokens.size()}, false);
    run.forward(context, tokens.data());
    run.model.head_logits(context, run.x.back().data(), std::array{static_cast<std::int32_t>(tokens.size() - 1)},
                          logits.data());
    added.push_back(static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    tokens.push_back(added.back());
  }
  return added;
}

struct Asked {
  std::vector<std::vector<TokenId>> prompts;
  GenerationOptions options = {.sampling = {.temperature = 0}, .max_new_tokens = 64};
  std::size_t sequences = 2;
  int ranks = 1;
  std::string strategy = "full";
  DType type = DType::f32;
};

/// Returns the texts that rank 0 receives.
inline std::vector<GeneratedText> generate(const ModelRun& run, const Asked& asked) {
  std::vector<GeneratedText> texts;
  run_ranks(asked.ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    std::size_t longest = 0;
    for (const auto& prompt : asked.prompts) longest = std::max(longest, prompt.size());
    const TransformerConfig& config = run.model.config();
    const GenerationShape shape = generation_shape(config, asked.sequences, longest, asked.options.max_new_tokens);
    ShardedModel sharded(config,
                         {.strategy = asked.strategy,
                          .batch = {shape.rows, 1},
                          .types = {.parameter = asked.type, .master = asked.type == DType::bf16 ? DType::bf16 : DType::f32},
                          .plan = {.training = false, .cache = shape.cache}},
                         world);
    const auto device = make_cpu_device();
    Executor& executor = sharded.allocate(*device);
    load_parameters(WeightSource(run), sharded.model().parameters(), sharded.layout(), sharded.shard(), executor.parameters());
    executor.publish_parameters();
    const auto tokenizer = make_byte_tokenizer();
    Generator generator(executor, world, config, tokenizer.get(), asked.options);
    generator.run(asked.prompts, [&](const GeneratedText& text) {
      if (world.rank() == 0) texts.push_back(text);
    });
  });
  return texts;
}

}  // namespace fsdp::test
