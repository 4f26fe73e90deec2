#include "train/validation.hpp"

#include "base/format.hpp"
#include "comm/agree.hpp"
#include "data/open_data.hpp"
#include "engine/mean_loss.hpp"
#include "files/input_file.hpp"
#include "options/model_tokenizer.hpp"
#include "record/metrics_file.hpp"

namespace fsdp {

namespace {

Weights chosen_weights(const TrainOptions& options) { return options.use_ema ? Weights::average : Weights::trained; }

}  // namespace

bool is_validated(const Progress& progress) { return progress.validations && progress.validations->update == progress.update; }

Missed find_missed(const RunContext& run, const Origin& origin, Progress& progress) {
  const TrainOptions& options = run.options;
  if (!origin.checkpoint) return {};
  struct Found {
    double loss = 0;
    bool continues = false, has_data = false, has_file = false, has_loss = false, sampled = false;
  } found;
  agree(run.world, [&] {
    if (run.world.rank() != 0) return;
    found.continues = whole_path(origin.checkpoint->folder().parent_path()) == whole_path(options.save.folder);
    found.has_data = !options.valid.empty() || valid_data_of(options.data);
    if (!found.continues || kind_of(options.log_file) != PathKind::file) return;
    const TakenUp there = take_up_metrics(options.log_file, {options.save.folder.string(), progress.update}, true);
    found = {there.loss.value_or(0), true, found.has_data, true, there.loss.has_value(), there.sampled};
  });
  run.world.broadcast(&found, sizeof found, 0);
  if (!found.continues) return {};
  if (found.has_loss && !is_validated(progress)) note_validation(progress.validations, progress.update, found.loss);
  return {.validation = found.has_data && !is_validated(progress) && !stopped_early(options, progress),
          .sample = every(options.sample_interval_updates, progress.update) && !found.sampled,
          .certain = found.has_file || options.judges()};
}

Validated validate(const LoopContext& loop, const ValidData* data, const std::function<bool()>& stop) {
  if (!data) return Validated::worse;
  Progress& progress = loop.engine.progress();
  const FlightNote note(loop.flight, "validate", progress.update);
  const Timer timer;
  std::optional<MeanLoss> mean;
  try {
    const auto after_batch = [&](std::size_t batches) {
      loop.engine.saver().announce();
      loop.log.validating(progress.update, batches, data->batches.batches(), timer.seconds());
    };
    loop.engine.with(chosen_weights(loop.options),
                     [&] { mean = mean_loss(loop.engine.executor(), data->batches, loop.world, after_batch, stop); });
  } catch (const CollectiveError& error) {  // the validation data cannot be read, but the training state is valid
    save(loop, true);
    throw CollectiveError(format("{}; update {} is saved", error.what(), progress.update), error.speaker, error.all,
                          error.exit_code);
  }
  if (!mean) {
    loop.log.say(format("the validation after update {} ends without a result, because the run stops; the next start makes it",
                        progress.update));
    return Validated::interrupted;
  }
  const bool is_best = note_validation(progress.validations, progress.update, mean->loss);
  loop.log.valid({.step = progress.update,
                  .loss = mean->loss,
                  .tokens = data->batches.targets(),
                  .ms = timer.seconds() * 1e3,
                  .accuracy = mean->accuracy,
                  .entropy = mean->entropy,
                  .is_best = is_best});
  return is_best ? Validated::best : Validated::worse;
}

SamplePrompt make_sample_prompt(const RunContext& run, const Origin& origin) {
  if (run.options.sample_interval_updates == 0) return {};
  return agree(run.world, [&] {
    SamplePrompt prompt;
    ModelTexts texts = find_model_texts({}, origin.model_folder, origin.tokenizer, origin.config.vocab_size);
    prompt.tokenizer = std::move(texts.tokenizer), prompt.end = std::move(texts.end.ids);
    if (!prompt.tokenizer)
      throw UserError(
          format("--sample-interval-updates needs a tokenizer (the model has {} tokens, and the folder that it came from is "
                 "unknown or has no tokenizer); give --tokenizer",
                 origin.config.vocab_size));
    prompt.tokens = encode_prompt(run.options.sample_prompt, *prompt.tokenizer, origin.config.vocab_size, "--sample-prompt");
    if (!texts.end.contradiction.empty()) run.log.warn(texts.end.contradiction);
    return prompt;
  });
}

namespace {

std::unique_ptr<Generator> make_generator(const LoopContext& loop, const SamplePrompt& prompt) {
  constexpr std::size_t sample_tokens = 64;
  if (!prompt.tokenizer) return nullptr;
  return std::make_unique<Generator>(loop.engine.executor(), loop.world, loop.engine.model().transformer().config(),
                                     prompt.tokenizer.get(),
                                     GenerationOptions{.sampling = {.temperature = 0.8},
                                                       .max_new_tokens = sample_tokens,
                                                       .seed = loop.options.seed,
                                                       .end_tokens = prompt.end});
}

}  // namespace

TextSampler::TextSampler(const LoopContext& loop, const SamplePrompt& prompt)
    : loop_(loop), prompt_(prompt), generator_(make_generator(loop, prompt)) {}

void TextSampler::run() {
  if (!generator_) return;
  const std::uint64_t update = loop_.engine.progress().update;
  const FlightNote note(loop_.flight, "sample", update);
  loop_.engine.with(chosen_weights(loop_.options), [&] {
    generator_->run({prompt_.tokens},
                    [&](const GeneratedText& text) { loop_.log.sample(update, loop_.options.sample_prompt, text.text); });
  });
}

}  // namespace fsdp
