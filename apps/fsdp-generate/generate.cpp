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
                  "mpirun -np 4 fsdp-generate DIR --chat --prompts questions.jsonl --temperature 0.7 --json",
                  "fsdp-generate DIR --chat"});
  table.group("What");
  table
      .path("model", "MODEL", options.model,
            "Hugging Face folder, checkpoint (step folder or save folder) or consolidated file")
      .positional()
      .sets("base model", "MODEL, with --adapter")
      .common();
  table.text("prompt", "TEXT", options.prompt, "text to continue").unset("a line break").common();
  table
      .path("prompts", "FILE", options.prompts,
            "file of prompts: one in each line, or JSON objects with \"prompt\"; with --chat also conversations as fsdp-train "
            "reads "
            "them, whose last answer is left out")
      .common();
  add_model_tokenizer_option(table, options.tokenizer);
  table
      .flag("chat", options.chat,
            "Write prompts by the model's chat template. Without --prompt and --prompts, talk with the model: each line of "
            "standard input is a message, and answers are printed while they are generated.")
      .common();
  add_record_form_options(table, options.form, options.chat);
  add_chat_template_option(table, options.chat_template);
  table.text("system", "TEXT", options.system, "system message of --chat, for conversations that have none")
      .unset("the chat template's own, if it has one");
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
  if (options.talks() && options.json)
    throw UserError(
        "--json does not go with a talk (--chat without prompts reads messages from standard input); give --prompts FILE, or "
        "leave out --json");
  for (const auto& [name, given] :
       {std::pair("system", !options.system.empty()), {"chat-template", !options.chat_template.empty()}})
    if (given && !options.chat)
      throw UserError(format("--{} changes nothing (it is only for --chat); give --chat, or leave out --{}", name, name));
}

namespace {

constexpr const char* prompt_field = "prompt";

/// A text to continue. `place` names it in messages.
struct Prompt {
  ChatPrompt asked;
  std::string place;
};

/// Reads the prompts of --prompt or --prompts. With --chat, `chat` writes the conversations.
class PromptReader {
 public:
  PromptReader(const GenerateOptions& options, ChatReader* chat, const Warn& warn)
      : options_(options), chat_(chat), warn_(warn) {}

  /// Throws UserError.
  std::vector<Prompt> read() {
    if (options_.prompts.empty()) {
      add_line(options_.prompt.empty() ? "\n" : options_.prompt, "the prompt");
      return std::move(prompts_);
    }
    TextSource source({options_.prompts.string()});
    if (source.json_field("", prompt_field, warn_).empty()) {
      std::istringstream lines(source.read_at(0, source.size()));
      std::size_t number = 0;
      for (std::string text; std::getline(lines, text);) {
        ++number;
        if (text.ends_with('\r')) text.pop_back();
        if (!text.empty()) add_line(text, format("line {} of '{}'", number, options_.prompts.string()));
      }
    } else {
      for (JsonRecords records(source, 0, std::nullopt); records.next();) add_record(records);
    }
    if (prompts_.empty())
      throw UserError(format("no prompts in {} (all of its lines are empty); write one per line", options_.prompts.string()));
    return std::move(prompts_);
  }

 private:
  void add_line(const std::string& text, const std::string& place) {
    if (chat_)
      add_chat({{prompt_field, text}}, place);
    else
      prompts_.push_back({{text, false}, place});
  }
  void add_record(const JsonRecords& records) {
    const std::string place = records.place();
    std::string problem;
    if (chat_) {
      const nlohmann::ordered_json object = read_json_in_order(records.record(), problem);
      if (const std::string form = known_form(object); options_.form == RecordForm() && !form.empty())
        throw UserError(format("{} is {}", place, form));
      if (!problem.empty()) throw UserError(format("{} is no conversation ({}); correct it", place, problem));
      return add_chat(object, place);
    }
    std::optional<std::string> prompt = read_json_field(records.record(), prompt_field, problem);
    if (!prompt)
      throw UserError(
          format("{} has no prompt ({}: a prompt in JSON is an object with the text \"prompt\"); correct it{}", place, problem,
                 records.record().find("\"messages\"") == std::string_view::npos ? "" : ", or give --chat for conversations"));
    prompts_.push_back({{std::move(*prompt), false}, place});
  }
  void add_chat(const nlohmann::ordered_json& object, const std::string& place) {
    std::string problem;
    ChatPrompt asked = chat_->read_prompt(object, options_.system, problem);
    if (!problem.empty()) throw UserError(format("{} cannot be answered ({}); correct it, or leave it out", place, problem));
    prompts_.push_back({std::move(asked), place});
  }

  const GenerateOptions& options_;
  ChatReader* chat_;
  Warn warn_;
  std::vector<Prompt> prompts_;
};

/// The files and options that each rank reads before it generates. The rank that `speaks`, rank 0, prints the warnings.
struct Inputs {
  std::unique_ptr<TensorSource> source;
  std::unique_ptr<Tokenizer> tokenizer;
  GenerationOptions generation;
  std::vector<Prompt> prompts;
  std::vector<std::vector<TokenId>> tokens;  // the tokens of each prompt
  std::optional<ChatReader> chat;

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
      chat.emplace(options.chat_template.empty() ? folder : options.chat_template, *tokenizer, options.form);
      if (const auto end = tokenizer->find(chat->chat().end()); end && !options.chat_template.empty())
        generation.end_tokens.push_back(*end);
    }
    if (options.talks()) return;
    prompts = PromptReader(options, chat ? &*chat : nullptr, [&](const std::string& text) {
                if (speaks) print_warning(text);
              }).read();
    if (chat && speaks) print_warnings(chat->warnings());
    for (const Prompt& prompt : prompts) tokens.push_back(tokens_of(prompt, vocab_size));
  }
  std::size_t longest_prompt() const {
    std::size_t longest = 0;
    for (const auto& ids : tokens) longest = std::max(longest, ids.size());
    return longest;
  }

 private:
  /// A template writes all special tokens; other prompts begin with those that the model expects.
  std::vector<TokenId> tokens_of(const Prompt& prompt, std::size_t vocab_size) const {
    if (!prompt.asked.is_templated) return encode_prompt(prompt.asked.text, *tokenizer, vocab_size, prompt.place);
    std::vector<TokenId> ids = tokenizer->encode(prompt.asked.text);
    if (ids.empty())
      throw UserError(format("{} has no tokens (the chat template writes nothing); give another prompt", prompt.place));
    require_tokens_of_model(ids, *tokenizer, vocab_size, prompt.place);
    return ids;
  }
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
  const ChatPrompt& asked = inputs.prompts[text.prompt].asked;
  nlohmann::ordered_json object = {{"index", text.prompt},
                                   {"prompt", asked.text},
                                   {"text", text.text},
                                   {"finish", name_of(text.finish)},
                                   {"prompt_tokens", inputs.tokens[text.prompt].size()},
                                   {"tokens", text.tokens}};
  if (!asked.reference.is_null()) object["reference"] = asked.reference;
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
void converse(const GenerateOptions& options, Inputs& inputs, Generator& generator, Communicator& world,
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
      ids = inputs.tokenizer->encode(inputs.chat->chat().render(conversation));
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
      world,
      [&] {
        return files_of_model(*inputs->source, options.model, options.tokenizer, {{options.prompts}, {options.chat_template}});
      },
      options.no_verify);
  const TransformerConfig config = inputs->source->config();
  const std::size_t ranks = static_cast<std::size_t>(world.size()),
                    texts = options.talks() ? 1 : std::min(options.batch_size, (inputs->prompts.size() + ranks - 1) / ranks);
  const GenerationShape shape = generation_shape(
      config, texts, options.talks() ? longest_conversation : inputs->longest_prompt(), inputs->generation.max_new_tokens);
  const std::size_t longest = inputs->longest_prompt() + inputs->generation.max_new_tokens;
  if (!options.talks() && longest > config.longest_sequence() && world.rank() == 0)
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
  if (options.talks()) return converse(options, *inputs, generator, world, out);
  const bool one = options.prompts.empty(), pieces = one && !options.json;
  ProgressBar bar("generating");
  const auto on_text = [&](const GeneratedText& text) {
    if (world.rank() != 0 || pieces) return;
    bar.clear();  // the text may go to the same terminal
    out(options.json ? json_line(text, *inputs)
                     : format("--- prompt {}\n{}{}\n", text.prompt + 1, inputs->prompts[text.prompt].asked.text, text.text));
    bar.update(static_cast<double>(text.prompt + 1), static_cast<double>(inputs->prompts.size()));
  };
  const auto on_piece = [&](std::size_t, std::string_view piece) {
    if (pieces) out(piece);
  };
  if (pieces && world.rank() == 0 && !options.chat) out(inputs->prompts.front().asked.text);
  generator.run(inputs->tokens, on_text, on_piece);
  if (pieces && options.chat && world.rank() == 0) out("\n");
}

}  // namespace fsdp
