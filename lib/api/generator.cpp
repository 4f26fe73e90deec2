#include "api/generator.hpp"

#include <functional>
#include <utility>

#include "api/model_inside.hpp"
#include "api/words.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/adapter.hpp"
#include "comm/agree.hpp"
#include "generate/generator.hpp"
#include "options/common_options.hpp"
#include "options/generation_config.hpp"
#include "options/model_tokenizer.hpp"

namespace fsdp {

namespace {

using Prompts = std::vector<std::vector<TokenId>>;

std::vector<Field> fields_of(const TextGeneratorOptions& o) {
  return {{"batch-size", "batch_size", format("{}", o.batch_size)},
          {"positions", "positions", format("{}", o.positions)},
          {"sharding-strategy", "sharding_strategy", o.sharding_strategy},
          {"precision", "param_dtype", o.param_dtype},
          {"base-dtype", "base_dtype", o.base_dtype.empty() ? std::nullopt : std::optional(o.base_dtype)}};
}

std::vector<Field> fields_of(const GenerationConfig& c) {
  const auto if_given = [](const auto& value) { return value ? std::optional(format("{}", *value)) : std::nullopt; };
  std::vector<Field> fields = {{"max-new-tokens", "max_new_tokens", format("{}", c.max_new_tokens)},
                               {"temperature", "temperature", if_given(c.temperature)},
                               {"top-k", "top_k", if_given(c.top_k)},
                               {"top-p", "top_p", if_given(c.top_p)},
                               {"repetition-penalty", "repetition_penalty", if_given(c.repetition_penalty)},
                               {"seed", "seed", format("{}", c.seed)}};
  for (const std::string& text : c.stop_strings) fields.push_back({"stop", "stop_strings", text});
  return fields;
}

/// The options of the constructor as the library uses them.
struct Chosen {
  std::size_t batch_size = 0, positions = 0;
  std::string strategy;
  DType precision = DType::f32;
  std::optional<kernels::Quantization> base_type;

  explicit Chosen(const TextGeneratorOptions& options) {
    OptionTable table("", "", "");
    table.integer("batch-size", "B", batch_size, {1, 1e4}, "");
    table.integer("positions", "N", positions, {1, 1e9}, "");
    add_strategy_option(table, strategy);
    add_precision_options(table, precision);
    add_base_type_option(table, base_type, "");
    set_fields(table, fields_of(options));
  }
};

}  // namespace

struct TextGenerator::Parts {
  /// Calls `work` with the model, on all ranks. Collective.
  void run(const std::function<void(Executor&, Communicator&)>& work) {
    if (trained)
      trained->decode(use_ema, [&](const auto& inside) { work(inside.engine.executor(), *inside.job.world); });
    else
      job->together([&] { work(sharded->executor(), *job->world); });
  }
  void open(Job& of_job, const std::filesystem::path& model, const TextGeneratorOptions& options);
  void open(FullyShardedDataParallel& model, const std::string& tokenizer, bool average);
  /// Finds the tokenizer and the end tokens. Throws UserError.
  void find_texts(const std::filesystem::path& origin, const std::string& tokenizer);
  /// `prompts_of` may throw UserError. Collective.
  std::vector<GeneratedTokens> generate(const std::function<Prompts()>& prompts_of, const GenerationConfig& config);
  void check(const Prompts& prompts, std::size_t new_tokens, std::size_t positions) const;

  std::shared_ptr<Job::Parts> job;  // must outlive `sharded`
  std::optional<ShardedModel> sharded;
  FullyShardedDataParallel* trained = nullptr;  // null if this object has its own model
  bool use_ema = false;                         // of `trained`
  TransformerConfig config;
  std::filesystem::path folder;  // with the model's files besides the weights; may be empty
  ModelTexts texts;
  std::vector<std::string> warnings;
};

void TextGenerator::Parts::open(Job& of_job, const std::filesystem::path& model, const TextGeneratorOptions& options) {
  job = of_job.parts();
  job->together([&] {
    Communicator& world = *job->world;
    const Chosen chosen = agree(world, [&] {
      if (model.empty()) throw UserError("the path of the model is empty; give a name");
      return Chosen(options);
    });
    require_same(world,
                 format("{}{}\n{}\n{}\n{}\n", text_of(fields_of(options)), model.string(), options.adapter.string(),
                        options.tokenizer, options.use_ema),
                 [&](const std::string&) {
                   throw UserError(format(
                       "the ranks' TextGenerators differ (the model or an option of rank {} is not that of rank 0); give "
                       "all ranks the same",
                       world.rank()));
                 });
    const auto source = agree(world, [&] {
      auto opened = open_adapted_model(model, options.adapter, chosen.base_type, &warnings, Verify::yes,
                                       options.use_ema ? Weights::average : Weights::trained);
      config = opened->config();
      folder = folder_beside(*opened, model);
      find_texts(folder_of_origin(*opened), options.tokenizer);
      return opened;
    });
    require_same_files(world, [&] { return files_of_model(*source, model, options.tokenizer); });
    const GenerationShape shape = generation_shape(config, chosen.batch_size, chosen.positions, 0);
    load_model(sharded, *source, sharding_for_generation(chosen.strategy, chosen.precision, shape), chosen.base_type, job->rank,
               world, {.table_type = chosen.precision}, job->comm);
  });
}

void TextGenerator::Parts::open(FullyShardedDataParallel& model, const std::string& tokenizer, bool average) {
  trained = &model, use_ema = average;
  model.decode(average, [&](const auto& inside) {
    agree(*inside.job.world, [&] {
      config = *inside.engine.model().model().transformer_config;
      folder = inside.engine.model_folder;
      find_texts(folder, tokenizer);
    });
    require_same_files(*inside.job.world, [&] { return FileLists{tokenizer_files_at(folder), tokenizer_files_at(tokenizer)}; });
  });
}

void TextGenerator::Parts::find_texts(const std::filesystem::path& origin, const std::string& tokenizer) {
  texts = find_model_texts(folder, origin, tokenizer, config.vocab_size);
  const auto add = [&](const std::string& warning) {
    if (!warning.empty()) warnings.push_back(warning);
  };
  add(texts.end.contradiction);
  if (!texts.tokenizer) return;
  for (const std::string& warning : texts.tokenizer->warnings()) add(warning);
  add(doubt_tokenizer(*texts.tokenizer, tokenizer, config.vocab_size, folder).value_or(""));
}

/// Throws UserError if a prompt does not fit the model.
void TextGenerator::Parts::check(const Prompts& prompts, std::size_t new_tokens, std::size_t positions) const {
  const char* const option = trained ? "generate_positions" : "positions";
  const bool is_longest = positions == config.longest_sequence();  // a longer text continues from its newest half
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) throw UserError(format("prompts[{}] has no tokens; give at least one", i));
    for (std::size_t k = 0; k < prompts[i].size(); ++k)
      if (prompts[i][k] < 0 || static_cast<std::size_t>(prompts[i][k]) >= config.vocab_size)
        throw UserError(format("prompts[{}][{}] is {}, which is no token of the model (its tokens are 0 to {}); correct it", i,
                               k, prompts[i][k], config.vocab_size - 1));
    if (prompts[i].size() > positions)
      throw UserError(format("prompts[{}] has {} tokens, but {} is {}; {}shorten the prompt", i, prompts[i].size(), option,
                             positions, is_longest ? "" : format("raise {}, or ", option)));
    if (!is_longest && prompts[i].size() + new_tokens > positions)
      throw UserError(
          format("prompts[{}] has {} tokens and max_new_tokens is {}, but {} is {}; raise {}, or lower max_new_tokens", i,
                 prompts[i].size(), new_tokens, option, positions, option));
  }
}

std::vector<GeneratedTokens> TextGenerator::Parts::generate(const std::function<Prompts()>& prompts_of,
                                                            const GenerationConfig& wanted) {
  std::vector<GeneratedTokens> results;
  run([&](Executor& executor, Communicator& world) {
    GenerationOptions options;
    const Prompts prompts = agree(world, [&] {
      GenerationWishes wishes;
      OptionTable table("", "", "");
      add_generation_options(table, options, wishes);
      set_fields(table, fields_of(wanted));
      if (!wishes.stop.empty() && !texts.tokenizer)
        throw UserError("stop_strings need a tokenizer (the model has none); name one, or give eos_token_id");
      add_generation_config(folder, wishes);
      options.sampling = sampling_of(wishes);
      options.stop = std::move(wishes.stop);
      options.end_tokens = wanted.eos_token_id.value_or(texts.end.ids);
      Prompts all = prompts_of();
      check(all, options.max_new_tokens, executor.cache().positions);
      return all;
    });
    require_same(world, format("{}{}", text_of(fields_of(wanted)), fmt::join(options.end_tokens, " ")), [](const std::string&) {
      throw UserError(
          "the ranks call generate() with different options (they generate the texts together); give all ranks the same");
    });
    std::string all;
    for (const auto& prompt : prompts) all += format("{}\n", fmt::join(prompt, " "));
    require_same(world, all, [](const std::string&) {
      throw UserError(
          "the ranks call generate() with different prompts (each rank generates some of all texts); give all ranks the same "
          "prompts");
    });
    Generator generator(executor, world, config, texts.tokenizer.get(), options);
    generator.run(prompts, [&](const GeneratedText& text) {
      results.push_back({text.tokens, text.text, std::string(name_of(text.finish))});
    });
  });
  return results;
}

TextGenerator::TextGenerator(Job& job, const std::filesystem::path& model, const TextGeneratorOptions& options)
    : parts_(std::make_unique<Parts>()) {
  parts_->open(job, model, options);
}
TextGenerator::TextGenerator(FullyShardedDataParallel& model, const std::string& tokenizer, bool use_ema)
    : parts_(std::make_unique<Parts>()) {
  parts_->open(model, tokenizer, use_ema);
}
TextGenerator::~TextGenerator() = default;

std::vector<GeneratedTokens> TextGenerator::generate(const std::vector<std::vector<std::int32_t>>& prompts,
                                                     const GenerationConfig& config) {
  return parts_->generate([&] { return prompts; }, config);
}

std::vector<GeneratedTokens> TextGenerator::generate_text(const std::vector<std::string>& prompts,
                                                          const GenerationConfig& config) {
  const auto encode = [&] {
    if (!parts_->texts.tokenizer)
      throw UserError("the model has no tokenizer, which texts need; name one, or give prompts of tokens");
    Prompts all;
    for (const std::string& prompt : prompts)
      all.push_back(
          encode_prompt(prompt, *parts_->texts.tokenizer, parts_->config.vocab_size, format("prompts[{}]", all.size())));
    return all;
  };
  return parts_->generate(encode, config);
}

const std::vector<std::string>& TextGenerator::warnings() const { return parts_->warnings; }

}  // namespace fsdp
