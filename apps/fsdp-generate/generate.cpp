#include "fsdp-generate/generate.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/philox.hpp"
#include "base/program.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/threads/threads.hpp"
#include "fsdp/sharded_model.hpp"
#include "kernels/threads.hpp"
#include "train/common_options.hpp"
#include "train/machine.hpp"
#include "train/model_tokenizer.hpp"

namespace fsdp {

OptionTable generate_option_table(GenerateOptions& options) {
  OptionTable table("fsdp-generate", "MODEL [options]", "Samples text from a model.");
  table.group("What");
  table
      .path("model", "PATH", options.model, "Hugging Face folder, checkpoint (step folder or save folder) or consolidated file")
      .positional();
  table.text("prompt", "TEXT", options.prompt, "text to go on from").unset("a line break");
  add_model_tokenizer_option(table, options.tokenizer);
  table.integer("max-new-tokens", "N", options.max_new_tokens, {1, 1e9}, "tokens to add");
  table.group("Sampling");
  table.number("temperature", "X", options.temperature, "divides the logits; 0 always takes the likeliest token", "0 or more",
               [](double x) { return x >= 0; });
  table.integer("top-k", "K", options.top_k, {0, 1e9}, "only the K likeliest tokens; 0 means all");
  table.number("top-p", "P", options.top_p, "only the likeliest tokens that together have this probability",
               "above 0, at most 1", [](double x) { return x > 0 && x <= 1; });
  table.integer("seed", "N", options.seed, {0, 4294967295.0}, "the same seed gives the same text");
  table.group("Run");
  add_no_verify_option(table, options.no_verify);
  add_device_option(table, options.device);
  add_threads_option(table, options.threads);
  return table;
}

std::size_t sample_token(std::span<const float> logits, double temperature, std::size_t top_k, double top_p, double uniform) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (temperature == 0) return order.front();
  if (top_k > 0 && top_k < order.size()) order.resize(top_k);
  std::vector<double> weights;
  for (const std::size_t token : order) weights.push_back(std::exp((logits[token] - logits[order.front()]) / temperature));
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < top_p * all)) kept += weights[count++];
  double left = uniform * kept;
  for (std::size_t i = 0; i < count; ++i)
    if ((left -= weights[i]) < 0) return order[i];
  return order[count - 1];
}

void generate(const GenerateOptions& options, const std::function<void(std::string_view)>& out) {
  if (options.model.empty()) throw UserError("MODEL is needed (whose text to sample); see fsdp-generate --help");
  std::vector<std::string> warnings;
  const auto source = open_tensor_source(options.model, &warnings, options.no_verify ? Verify::no : Verify::yes);
  print_warnings(warnings);
  const TransformerConfig config = source->config();
  const auto tokenizer = find_model_tokenizer(options.tokenizer, options.model, config.vocab_size);
  if (!tokenizer)
    throw UserError(format("{} has {} tokens, and no tokenizer lies beside it (its text needs one); give --tokenizer",
                           source->description(), config.vocab_size));
  const std::string prompt = options.prompt.empty() ? "\n" : options.prompt;
  std::vector<TokenId> tokens = tokenizer->before_text();
  tokenizer->encode(prompt, tokens);
  if (tokens.empty()) throw UserError("the prompt has no tokens (its tokenizer leaves all of it out); give another --prompt");

  const auto world = make_self_communicator();
  const int threads = share_of_rank(*world, options.threads).threads;
  kernels::set_threads(threads);
  const DeviceKind kind = choose_device(options.device);
  const auto device = make_device_of_rank(kind, {}, *world, *world);
  const std::size_t T = std::min(config.longest_sequence(), round_up(tokens.size() + options.max_new_tokens, 64));
  ShardedModel sharded(config, {.strategy = "none", .batch = {1, T}, .plan = {.training = false}}, *world,
                       traits_of(kind, threads));
  Executor& executor = sharded.allocate(*device);
  load_parameters(*source, sharded.model().parameters(), sharded.layout(), 0, executor.parameters());

  out(prompt);
  const auto decoder = tokenizer->make_decoder();
  std::string text;  // a decoder begins with the prompt, so that what follows joins it as it should
  for (const TokenId token : tokens) decoder->add(token, text);
  std::vector<float> logits(config.vocab_size);
  for (std::size_t i = 0; i < options.max_new_tokens; ++i) {
    const std::size_t seen = std::min(T, tokens.size());  // the window slides once it is full
    executor.logits(
        [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
          std::fill_n(std::copy_n(tokens.end() - static_cast<std::ptrdiff_t>(seen), seen, inputs), T - seen, 0);
          std::fill_n(targets, T, -1);
        },
        seen - 1, logits.data());
    const auto words = philox({static_cast<std::uint32_t>(i), 0, 0, static_cast<std::uint32_t>(RandomSite::generation)},
                              {static_cast<std::uint32_t>(options.seed), 0});
    // Places that the model has for tokens and the tokenizer does not fill have no text.
    const std::size_t token = sample_token(std::span(logits).first(std::min(logits.size(), tokenizer->vocab_size())),
                                           options.temperature, options.top_k, options.top_p, words[0] / 4294967296.0);
    tokens.push_back(static_cast<TokenId>(token));
    text.clear();
    decoder->add(tokens.back(), text);
    out(text);
  }
  text.clear();
  decoder->finish(text);
  out(text);
}

}  // namespace fsdp
