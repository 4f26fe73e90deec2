#include "fsdp-evaluate/evaluate.hpp"

#include <cmath>
#include <numbers>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/program.hpp"
#include "base/progress.hpp"
#include "base/timer.hpp"
#include "checkpoint/checkpoint.hpp"
#include "data/batch.hpp"
#include "data/open_data.hpp"
#include "files/json.hpp"
#include "fsdp/sharded_model.hpp"
#include "kernels/threads.hpp"
#include "train/common_options.hpp"
#include "train/machine.hpp"
#include "train/mean_loss.hpp"
#include "train/model_tokenizer.hpp"
#include "train/program.hpp"

namespace fsdp {

OptionTable evaluate_option_table(EvaluateOptions& options) {
  OptionTable table("fsdp-evaluate", "MODEL DATA [options]",
                    "Loss, perplexity and bits per token and byte of a model on tokens.");
  table.group("What");
  table
      .path("model", "PATH", options.model, "Hugging Face folder, checkpoint (step folder or save folder) or consolidated file")
      .positional();
  table.text("data", "DATA", options.data, "tokens, of any format that fsdp-train reads").positional();
  table.group("How");
  table.integer("batch-size", "B", options.batch_size, {1, 1e6}, "sequences per rank at a time");
  table.integer("tokens-per-sample", "T", options.tokens_per_sample, {0, 1e9}, "tokens per sequence")
      .alias("block-size")
      .unset("the model's longest sequence, at most 1024");
  add_model_tokenizer_option(table, options.tokenizer);
  add_no_verify_option(table, options.no_verify);
  add_device_option(table, options.device);
  add_threads_option(table, options.threads);
  table.flag("json", options.json, "print one JSON object");
  return table;
}

void require_complete(const EvaluateOptions& options) {
  if (options.model.empty() || options.data.empty())
    throw UserError("MODEL and DATA are needed (what to evaluate, and on which tokens); see fsdp-evaluate --help");
}

namespace {

/// Bytes of the text that all targets stand for.
std::size_t text_bytes(const Tokens& tokens, const Tokenizer& tokenizer) {
  std::vector<std::uint32_t> piece(std::min<std::uint64_t>(tokens.size(), 4096));
  const auto decoder = tokenizer.make_decoder();
  std::string text;
  std::size_t bytes = 0;
  for (std::uint64_t at = 0; at < tokens.size(); at += piece.size()) {
    const auto here = std::span(piece).first(std::min<std::uint64_t>(piece.size(), tokens.size() - at));
    tokens.read(at, here);
    for (std::size_t i = 0; i < here.size(); ++i) {
      decoder->add(static_cast<TokenId>(here[i]), text);
      if (at + i == 0) text.clear();  // the first token is no target, but what stands behind it begins no text
    }
    bytes += text.size();
    text.clear();
  }
  decoder->finish(text);
  return bytes + text.size();
}

}  // namespace

std::string evaluate(const EvaluateOptions& options, Communicator& world) {
  const auto node = world.split_by_node();
  const int threads = share_of_rank(*node, options.threads).threads;
  kernels::set_threads(threads);
  DeviceKind kind = DeviceKind::cpu;
  agree(world, [&] { kind = choose_device(options.device); });
  const auto device = make_device_of_rank(kind, {}, world, *node);

  std::unique_ptr<TensorSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Tokens> tokens;
  agree(world, [&] {
    std::vector<std::string> warnings;
    source = open_tensor_source(options.model, &warnings, options.no_verify ? Verify::no : Verify::yes);
    if (world.rank() == 0) print_warnings(warnings);
    if (world.rank() == 0)  // which alone says the result
      tokenizer = find_model_tokenizer(options.tokenizer, options.model, source->config().vocab_size);
    tokens = open_tokens(options.data);
    check_vocabulary(*tokens, source->config().vocab_size, static_cast<std::size_t>(world.rank()),
                     static_cast<std::size_t>(world.size()));
  });
  const TransformerConfig config = source->config();
  const std::size_t T =
      options.tokens_per_sample > 0 ? options.tokens_per_sample : std::min<std::size_t>(config.longest_sequence(), 1024);
  const Samples samples(std::move(tokens), {T});
  std::optional<ValidBatches> batches;
  agree(world, [&] {
    batches.emplace(samples, BatchCut{options.batch_size, T, 1, world.rank(), world.size()}, config.vocab_size);
  });

  const ShardingOptions sharding = {.batch = {options.batch_size, T}, .plan = {.training = false}};
  agree(world, [&] { check_sharding(config, sharding, world.size()); });
  ShardedModel sharded(config, sharding, world, traits_of(kind, threads));
  Executor& executor = sharded.allocate(*device);
  agree(world, [&] {
    load_parameters(*source, sharded.model().parameters(), sharded.layout(), sharded.shard(), executor.parameters());
  });
  executor.publish_parameters();

  const Timer timer;
  ProgressBar bar("evaluating");
  const auto progress = [&](std::size_t done) {
    if (world.rank() == 0 && bar.terminal()) bar.update(static_cast<double>(done), static_cast<double>(batches->batches()));
  };
  const double loss = *mean_loss(executor, *batches, world, progress), seconds = timer.seconds();
  bar.clear();
  const double bits = loss / std::numbers::ln2;
  const bool is_bytes = config.vocab_size == 256 && tokenizer && tokenizer->vocab_size() == 256;  // each token is a byte
  std::optional<double> bits_per_byte;
  agree(world, [&] {
    if (tokenizer)
      bits_per_byte = is_bytes ? bits
                               : bits * static_cast<double>(batches->targets()) /
                                     static_cast<double>(text_bytes(samples.tokens(), *tokenizer));
  });
  if (options.json) {
    nlohmann::json json = {{"loss", loss},           {"ppl", std::exp(loss)},
                           {"bits_per_token", bits}, {"tokens", batches->targets()},
                           {"seconds", seconds},     {"model", source->description()}};
    if (bits_per_byte) json["bits_per_byte"] = *bits_per_byte;
    return json_text(json) + "\n";
  }
  std::string in_bits = is_bytes ? "" : format("  bits per token {:.6g}", bits);
  if (bits_per_byte) in_bits += format("  bits per byte {:.6g}", *bits_per_byte);
  return format("{}\nloss {:.17g}  ppl {:.6g}{}  ({} tokens, {})\n", source->description(), loss, std::exp(loss), in_bits,
                batches->targets(), format_duration(seconds));
}

}  // namespace fsdp
