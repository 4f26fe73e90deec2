#include "fsdp-bench/generate.hpp"

#include <algorithm>
#include <optional>
#include <sstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "fsdp-bench/support.hpp"
#include "generate/generator.hpp"
#include "kernels/threads.hpp"

namespace fsdp {

namespace {

/// B texts of a rank, which go on with the likeliest token each.
class Texts {
 public:
  Texts(Executor& executor, std::size_t B, std::size_t V, int rank)
      : executor_(executor), texts_(B), logits_(B * V), V_(V), seed_(static_cast<std::uint32_t>(rank) * 977 + 1) {}

  /// Prompts of T random tokens.
  void begin(std::size_t T) {
    known_ = 0;
    for (auto& text : texts_) {
      text.clear();
      for (std::size_t t = 0; t < T; ++t)
        text.push_back(static_cast<std::int32_t>((seed_ = seed_ * 1664525u + 1013904223u) % V_));
    }
  }
  /// All tokens that are not in the caches go through the model, and each text gets its next one.
  void step() {
    const std::size_t length = texts_.front().size();
    for (std::size_t b = 0; b < texts_.size(); ++b)
      for (std::size_t t = known_; t < length; ++t) {
        tokens_.push_back(texts_[b][t]);
        sequences_.push_back(static_cast<std::int32_t>(b));
        positions_.push_back(static_cast<std::int32_t>(t));
        if (t + 1 == length) wanted_.push_back(static_cast<std::int32_t>(tokens_.size() - 1));
        if (tokens_.size() == executor_.most_rows()) decode();
      }
    if (!tokens_.empty()) decode();
    known_ = length;
    for (std::size_t b = 0; b < texts_.size(); ++b) {
      const auto begin = logits_.begin() + static_cast<std::ptrdiff_t>(b * V_);
      texts_[b].push_back(static_cast<std::int32_t>(std::max_element(begin, begin + static_cast<std::ptrdiff_t>(V_)) - begin));
    }
  }
  /// The next step does not find anything in the caches.
  void forget() { known_ = 0; }

 private:
  void decode() {
    executor_.decode({tokens_, sequences_, positions_, wanted_}, logits_.data() + done_ * V_);
    done_ = (done_ + wanted_.size()) % texts_.size();
    for (auto* list : {&tokens_, &sequences_, &positions_, &wanted_}) list->clear();
  }

  Executor& executor_;
  std::vector<std::vector<std::int32_t>> texts_;
  std::vector<std::int32_t> tokens_, sequences_, positions_, wanted_;
  std::vector<float> logits_;
  std::size_t V_, known_ = 0, done_ = 0;
  std::uint32_t seed_;
};

/// torch_generate.py for a model of the same sizes.
std::string torch_script(const BenchOptions& options, const TransformerConfig& config) {
  const std::string type = options.sharding.types.parameter == DType::f32    ? "float32"
                           : options.sharding.types.parameter == DType::bf16 ? "bfloat16"
                                                                             : "float16";
  return format("threads, config, dtype, batch, prompt, new = {}, r'''{}''', '{}', {}, {}, {}\n{}", kernels::threads(),
                json_text(config_to_json(config)), type, options.sharding.batch.B, options.sharding.batch.T, options.new_tokens,
                torch_generate_py);
}

/// Seconds for prompts, and for answers.
struct Seconds {
  double prompt, answer;
};

}  // namespace

std::string bench_generate(const BenchOptions& options, Communicator& world, Device& device) {
  const std::size_t B = options.sharding.batch.B, T = options.sharding.batch.T, N = options.new_tokens;
  const DType type = options.sharding.types.parameter;
  TransformerConfig config;
  std::optional<PythonProcess> torch;
  ShardingOptions sharding;
  agree(world, [&] {
    config = config_of(options);
    if (T + N > config.longest_sequence())
      throw UserError(
          format("{} and {} tokens do not fit the longest sequence of {}, {}; give less to --tokens-per-sample or "
                 "--max-new-tokens",
                 T, N, model_of(options), config.longest_sequence()));
    if (!options.python.empty() && world.size() > 1)
      throw UserError("--python compares with one process (there are more ranks); start one rank");
    const GenerationShape shape = generation_shape(config, B, T, N);
    sharding = {.strategy = options.sharding.strategy,
                .batch = {shape.rows, 1},
                .types = {.parameter = type, .master = type == DType::bf16 ? DType::bf16 : DType::f32},
                .plan = {.training = false, .cache = shape.cache}};
    check_sharding(config, sharding, world.size());
    if (!options.python.empty()) torch.emplace(options.python, torch_script(options, config));
  });
  ShardedModel sharded(config, sharding, world, traits_of(device.kind(), kernels::threads()));
  Executor& executor = sharded.allocate(device, {.table_type = type}, options.comm);
  executor.initialize_parameters(1);
  executor.publish_parameters();

  Texts texts(executor, B, config.vocab_size, world.rank());
  const auto time_of = [&](auto&& work) {
    world.barrier();
    const Timer timer;
    work();
    world.barrier();
    return timer.seconds();
  };
  std::vector<double> prompts, answers, without, their_prompts, their_answers;
  const std::size_t tokens_without = 2;  // they take long
  for (std::size_t round = 0; round < options.steps + 1; ++round) {
    texts.begin(T);
    const double prompt = time_of([&] { texts.step(); });
    const double answer = time_of([&] {
      for (std::size_t i = 1; i < N; ++i) texts.step();
    });
    const double old = time_of([&] {
      for (std::size_t i = 0; i < tokens_without; ++i) texts.forget(), texts.step();
    });
    double one = 0, all = 0;
    if (torch) std::istringstream(torch->ask("generate")) >> one >> all;
    if (round == 0) continue;
    prompts.push_back(prompt);
    answers.push_back(answer);
    without.push_back(old);
    if (torch) their_prompts.push_back(one), their_answers.push_back(all - one);
  }
  const auto rate = [&](std::size_t tokens, const std::vector<double>& seconds, int ranks) {
    return static_cast<double>(B * tokens * static_cast<std::size_t>(ranks)) / median(seconds);
  };
  const double prompt_rate = rate(T, prompts, world.size()), answer_rate = rate(N - 1, answers, world.size()),
               rate_without = rate(tokens_without, without, world.size());
  nlohmann::json json = {{"arch", model_of(options)},
                         {"device", device.description()},
                         {"ranks", world.size()},
                         {"threads", kernels::threads()},
                         {"strategy", sharding.strategy},
                         {"precision", name_of(type)},
                         {"texts_per_rank", B},
                         {"prompt_tokens", T},
                         {"new_tokens", N},
                         {"prompt_tokens_per_second", prompt_rate},
                         {"answer_tokens_per_second", answer_rate},
                         {"answer_tokens_per_second_without_cache", rate_without},
                         {"mem_peak_bytes", executor.peak_bytes()}};
  std::string text =
      format("{}, {}, {} ranks of {} threads, {}; each {} texts of {} tokens, and {} new ones; medians of {}\n",
             model_of(options), name_of(type), world.size(), kernels::threads(), sharding.strategy, B, T, N, options.steps);
  text +=
      format("prompts  {:>10.1f} tokens/s\nanswers  {:>10.1f} tokens/s, {:.2f} ms per step; without a cache {:.1f} tokens/s\n",
             prompt_rate, answer_rate, 1e3 * median(answers) / static_cast<double>(N - 1), rate_without);
  if (torch) {
    const double their_prompt_rate = rate(T, their_prompts, 1), their_answer_rate = rate(N - 1, their_answers, 1);
    text += format(
        "transformers {}, in turn with ours: prompts {:.1f} tokens/s (ours {:.2f} times as fast), answers {:.1f} tokens/s "
        "(ours {:.2f} times)\n",
        torch->version(), their_prompt_rate, prompt_rate / their_prompt_rate, their_answer_rate,
        answer_rate / their_answer_rate);
    json["transformers"] = {{"version", torch->version()},
                            {"prompt_tokens_per_second", their_prompt_rate},
                            {"answer_tokens_per_second", their_answer_rate}};
  }
  return options.json ? json.dump() + "\n" : text;
}

}  // namespace fsdp
