#include "fsdp-generate/generate.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/progress.hpp"
#include "checkpoint/adapter.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "data/json_records.hpp"
#include "data/text_source.hpp"
#include "files/json.hpp"
#include "machine/machine.hpp"
#include "options/common_options.hpp"
#include "options/model_tokenizer.hpp"
#include "text/chat_template.hpp"
#include "text/json_reader.hpp"

namespace fsdp {

OptionTable generate_option_table(GenerateOptions& options) {
  OptionTable table("fsdp-generate", "MODEL [options]", "Generates text with a model, at any number of ranks.");
  table.examples({"fsdp-generate checkpoints --prompt 'In the beginning'",
                  "mpirun -np 4 fsdp-generate DIR --prompts prompts.txt --temperature 0.7 --json", "fsdp-generate DIR --chat"});
  table.group("What");
  table
      .path("model", "MODEL", options.model,
            "Hugging Face folder, checkpoint (step folder or save folder) or consolidated file")
      .positional()
      .sets("base model", "MODEL, with --adapter")
      .common();
  table.text("prompt", "TEXT", options.prompt, "text to continue").unset("a line break").common();
  table.path("prompts", "FILE", options.prompts, "file of prompts: one in each line, or JSON objects with \"prompt\"").common();
  add_model_tokenizer_option(table, options.tokenizer);
  table
      .flag("chat", options.chat,
            "talk with the model: each line of standard input is a message, and answers are printed while they are generated. "
            "For models with a chat template.")
      .common();
  table.text("system", "TEXT", options.system, "system message of --chat").unset("the chat template's own, if it has one");
  table.flag("json", options.json, "print one JSON object per prompt, on a line of its own").common();
  add_generation_options(table, options.generation, options.wishes);
  table.group("Run");
  table.integer("batch-size", "B", options.batch_size, {1, 1e4}, "texts that a rank generates at the same time").common();
  add_strategy_option(table, options.strategy);
  add_precision_options(table, options.precision);
  add_adapter_option(table, options.adapter);
  add_base_type_option(table, options.base_type, "Keep the matrices of the blocks quantized; adapters are not.");
  add_average_option(table, options.use_ema);
  add_no_verify_option(table, options.no_verify);
  add_device_option(table, options.device);
  add_threads_option(table, options.threads);
  return table;
}

void require_complete(const GenerateOptions& options) {
  if (options.model.empty()) throw UserError("MODEL is missing (the model that generates); see fsdp-generate --help");
  if (!options.prompt.empty() && !options.prompts.empty())
    throw UserError("--prompt and --prompts are both given (each gives text to continue); leave out one of them");
  if (options.chat && (!options.prompt.empty() || !options.prompts.empty() || options.json))
    throw UserError("--chat takes messages from standard input; leave out --prompt, --prompts and --json");
  if (!options.system.empty() && !options.chat)
    throw UserError("--system changes nothing (it is only for --chat); give --chat, or leave out --system");
}

namespace {

constexpr const char* prompt_field = "prompt";

std::vector<std::string> read_json_prompts(TextSource& text) {
  std::vector<std::string> prompts;
  for (JsonRecords records(text, 0, std::nullopt); records.next();) {
    std::string problem;
    std::optional<std::string> prompt = read_json_field(records.record(), prompt_field, problem);
    if (!prompt)
      throw UserError(format("{} has no prompt ({}: a prompt in JSON is an object with the text \"prompt\"); correct it",
                             records.place(), problem));
    prompts.push_back(std::move(*prompt));
  }
  return prompts;
}

std::vector<std::string> read_prompts(const GenerateOptions& options) {
  if (options.prompts.empty()) return {options.prompt.empty() ? "\n" : options.prompt};
  TextSource source({options.prompts.string()});
  std::vector<std::string> prompts;
  if (source.json_field("", prompt_field).empty()) {
    std::istringstream lines(source.read_at(0, source.size()));
    for (std::string text; std::getline(lines, text);) {
      if (text.ends_with('\r')) text.pop_back();
      if (!text.empty()) prompts.push_back(text);
    }
  } else {
    prompts = read_json_prompts(source);
  }
  if (prompts.empty())
    throw UserError(format("no prompts in {} (all of its lines are empty); write one per line", options.prompts.string()));
  return prompts;
}

/// The files and options that each rank reads before it generates. The rank that `speaks`, rank 0, prints the warnings.
struct Inputs {
  std::unique_ptr<TensorSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
  GenerationOptions generation;
  std::vector<std::string> prompts;
  std::vector<std::vector<TokenId>> tokens;  // the tokens of each prompt
  std::optional<ChatTemplate> chat;

  Inputs(const GenerateOptions& options, bool speaks) : generation(options.generation) {
    std::vector<std::string> warnings;
    source =
        open_adapted_model(options.model, options.adapter, options.base_type, &warnings,
                           options.no_verify ? Verify::no : Verify::yes, options.use_ema ? Weights::average : Weights::trained);
    if (speaks) print_warnings(warnings);
    const std::filesystem::path folder = folder_beside(*source, options.model);
    const std::size_t vocab_size = source->config().vocab_size;
    ModelTexts texts = find_model_texts(folder, folder_of_origin(*source), options.tokenizer, vocab_size);
    tokenizer = std::move(texts.tokenizer), generation.end_tokens = std::move(texts.end.ids);
    if (!tokenizer)
      throw UserError(format("{} is a model with {} tokens, but has no tokenizer next to it (text needs one); give --tokenizer",
                             source->description(), vocab_size));
    if (speaks) print_warnings(tokenizer->warnings());
    take_generation_config(options, folder, speaks);
    if (speaks && !texts.end.contradiction.empty()) print_warnings({texts.end.contradiction});
    if (const auto doubt = doubt_tokenizer(*tokenizer, options.tokenizer, vocab_size, folder); doubt && speaks)
      print_warnings({*doubt});
    if (options.chat) {
      chat = read_chat_template(folder, *tokenizer);
      return;
    }
    prompts = read_prompts(options);
    for (const std::string& prompt : prompts)
      tokens.push_back(encode_prompt(prompt, *tokenizer, vocab_size,
                                     prompts.size() > 1 ? format("the prompt {}", tokens.size() + 1) : "the prompt"));
  }
  std::size_t longest_prompt() const {
    std::size_t longest = 0;
    for (const auto& ids : tokens) longest = std::max(longest, ids.size());
    return longest;
  }

 private:
  /// Takes settings that the user did not give from the model's generation_config.json. If `speaks`, prints which ones.
  void take_generation_config(const GenerateOptions& options, const std::filesystem::path& folder, bool speaks) {
    GenerationWishes wishes = options.wishes;
    const AddedWishes added = add_generation_config(folder, wishes);
    generation.sampling = sampling_of(wishes);
    generation.stop = wishes.stop;
    if (!speaks) return;
    if (!added.taken.empty())
      print_to(stderr, "from the model's generation_config.json: {}\n", format("{}", fmt::join(added.taken, ", ")));
    if (!added.unknown.empty())
      print_warnings(
          {format("keys of the model's generation_config.json have no effect here: {} (texts may differ from those "
                  "of transformers' generate())",
                  fmt::join(added.unknown, ", "))});
  }
};

std::string json_line(const GeneratedText& text, const Inputs& inputs) {
  const nlohmann::ordered_json object = {{"index", text.prompt},
                                         {"prompt", inputs.prompts[text.prompt]},
                                         {"text", text.text},
                                         {"finish", name_of(text.finish)},
                                         {"prompt_tokens", inputs.tokens[text.prompt].size()},
                                         {"tokens", text.tokens}};
  return json_text(object) + "\n";
}

/// The longest conversation in tokens, including the answer. The model's longest sequence limits it further.
constexpr std::size_t longest_conversation = 8192;

/// Reads lines of rank 0's standard input for all ranks. While there is no input, the ranks meet in a collective every second,
/// so that no rank waits longer than the timeout of collectives.
class SharedLines {
 public:
  explicit SharedLines(Group& world) : world_(world) {}

  /// Returns the next line; nullopt after the last one. Collective.
  std::optional<std::string> next() {
    enum State : std::uint64_t { waiting, line, end };
    while (true) {
      std::uint64_t state = waiting;
      std::string text;
      if (world_.rank() == 0) {
        const auto found = take();
        state = found ? line : ended_ ? end : waiting;
        text = found.value_or("");
      }
      world_.broadcast(&state, sizeof state, 0);
      if (state == end) return std::nullopt;
      if (state == line) return world_.broadcast(text, 0);
    }
  }

 private:
  /// Returns a whole line if one arrives within a second.
  std::optional<std::string> take() {
    if (read_.find('\n') == std::string::npos && !ended_) {
      pollfd input = {0, POLLIN, 0};
      char piece[4096];
      if (::poll(&input, 1, 1000) > 0) {
        const ssize_t n = ::read(0, piece, sizeof piece);
        if (n <= 0)
          ended_ = true;
        else
          read_.append(piece, static_cast<std::size_t>(n));
      }
    }
    const auto length = read_.find('\n');
    if (length == std::string::npos && (!ended_ || read_.empty())) return std::nullopt;
    std::string text = read_.substr(0, length);
    read_.erase(0, length == std::string::npos ? length : length + 1);
    return text;
  }

  Group& world_;
  std::string read_;
  bool ended_ = false;
};

/// Answers message by message, until the input ends.
void converse(const GenerateOptions& options, const Inputs& inputs, Generator& generator, Communicator& world,
              const std::function<void(std::string_view)>& out) {
  const bool asks = world.rank() == 0 && ::isatty(0) != 0;
  Conversation conversation;
  if (!options.system.empty()) conversation.add("system", options.system);
  SharedLines lines(world);
  while (true) {
    if (asks) out("> ");
    std::optional<std::string> line = lines.next();
    if (!line) return;
    if (line->ends_with('\r')) line->pop_back();
    if (line->find_first_not_of(" \t") == std::string::npos) continue;
    conversation.add("user", *line);
    std::vector<TokenId> ids;
    agree(world, [&] {
      ids = inputs.tokenizer->encode(inputs.chat->render(conversation));
      require_tokens_of_model(ids, *inputs.tokenizer, inputs.source->config().vocab_size, "the conversation");
    });
    generator.run(
        {ids}, [&](const GeneratedText& text) { conversation.add("assistant", text.text); },
        [&](std::size_t, std::string_view piece) { out(piece); });
    if (world.rank() == 0) out("\n");
  }
}

}  // namespace

void generate(const GenerateOptions& options, Communicator& world, const std::function<void(std::string_view)>& out) {
  const ComputingRank rank = start_rank(options.device, options.threads, world);

  std::optional<Inputs> inputs;
  agree(world, [&] { inputs.emplace(options, world.rank() == 0); });
  require_same_files(
      world, [&] { return files_of_model(*inputs->source, options.model, options.tokenizer, {{options.prompts}}); },
      options.no_verify);
  const TransformerConfig config = inputs->source->config();
  const std::size_t ranks = static_cast<std::size_t>(world.size()),
                    texts = options.chat ? 1 : std::min(options.batch_size, (inputs->prompts.size() + ranks - 1) / ranks);
  const GenerationShape shape = generation_shape(config, texts, options.chat ? longest_conversation : inputs->longest_prompt(),
                                                 inputs->generation.max_new_tokens);
  const std::size_t longest = inputs->longest_prompt() + inputs->generation.max_new_tokens;
  if (!options.chat && longest > config.longest_sequence() && world.rank() == 0)
    print_warnings(
        {format("a prompt and its new tokens may have {} tokens, but the model sees at most {} (a longer text continues from "
                "its newest half; see docs/running.md, \"Full sequences\")",
                longest, config.longest_sequence())});
  std::optional<ShardedModel> sharded;
  with_progress("loading the model", [&](const ByteProgress& progress) {
    load_model(sharded, *inputs->source, sharding_for_generation(options.strategy, options.precision, shape), options.base_type,
               rank, world, {.table_type = options.precision}, {}, world.rank() == 0 ? progress : nullptr);
  });

  Generator generator(sharded->executor(), world, config, inputs->tokenizer.get(), inputs->generation);
  if (options.chat) return converse(options, *inputs, generator, world, out);
  const bool one = options.prompts.empty();
  const auto on_text = [&](const GeneratedText& text) {
    if (world.rank() != 0) return;
    if (options.json)
      out(json_line(text, *inputs));
    else if (!one)
      out(format("--- prompt {}\n{}{}\n", text.prompt + 1, inputs->prompts[text.prompt], text.text));
  };
  const auto on_piece = [&](std::size_t, std::string_view piece) {
    if (one && !options.json) out(piece);
  };
  if (one && !options.json && world.rank() == 0) out(inputs->prompts.front());
  generator.run(inputs->tokens, on_text, on_piece);
}

}  // namespace fsdp
