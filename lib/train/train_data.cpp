#include "train/train_data.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "comm/agree.hpp"
#include "data/open_data.hpp"
#include "data/text_source.hpp"
#include "data/tokenize_job.hpp"
#include "engine/same_files.hpp"
#include "files/checksum.hpp"
#include "files/json.hpp"
#include "files/scratch_folder.hpp"
#include "options/changed_options.hpp"
#include "options/model_tokenizer.hpp"
#include "record/metrics_file.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer_files.hpp"

namespace fsdp {

namespace {

std::filesystem::path text_tokens(const TrainOptions& options) { return options.save.folder / "tokens"; }

/// Sets the position of the run in the data, and returns the order in which the run reads the data.
DataOrder find_position(const RunContext& run, const Origin& origin, const Mixture& mixture, const std::vector<TextSet>& texts,
                        std::uint64_t token_sum, Progress& progress) {
  const TrainOptions& options = run.options;
  const DataPosition start{0,
                           mixture.T(),
                           mixture.tokens(),
                           options.shuffle,
                           options.seed,
                           mixture.order() + order_by_length(options.group_by_length),
                           checksum_of_texts(texts, text_tokens(options)),
                           mixture.sample_sum(),
                           mixture.documents_sum(),
                           mixture.mask_sum(),
                           token_sum};
  std::string notice;
  const bool goes_on = origin.checkpoint && !options.reset_dataloader;
  progress.data = goes_on ? continue_data(progress.data, start, &notice) : start;
  if (!notice.empty()) run.log.warn(notice);
  if ((options.shuffle || options.group_by_length) && progress.data.seed != options.seed)
    run.log.warn(format("the data stay in the order of --seed {}, with which the run began", progress.data.seed));
  const std::optional<std::uint64_t> seed = progress.data.seed;
  return {.shuffle_seed = options.shuffle ? seed : std::nullopt,
          .passes = options.max_epoch,
          .length_seed = options.group_by_length ? seed : std::nullopt};
}

std::unique_ptr<const ValidData> open_valid_data(const RunContext& run, std::size_t vocab_size) {
  const TrainOptions& options = run.options;
  const std::string valid = valid_name(options);
  if (valid.empty()) return nullptr;
  return std::make_unique<const ValidData>(open_tokens(valid, Split::valid, text_tokens(options)), options,
                                           batch_cut(run.options.sharding, run.world), vocab_size);
}

/// Compares what validations measure with what those before the checkpoint measured. If it differs, no validation before counts
/// as the best.
void compare_validations(const RunContext& run, std::uint64_t now, Progress& progress) {
  const std::uint64_t before = std::exchange(progress.valid_sum, now);
  auto& all = progress.validations;
  if (before == 0 || now == 0 || before == now || !all) return;
  run.log.warn(
      format("validations measure something else than before (the data of --valid, their mask, the way they are cut, "
             "--max-valid-steps or --use-ema have changed), so their losses are not compared with those up to update {}{}",
             all->update, run.options.judges() ? ", and the next validation is the best one so far" : ""));
  all->best_update = 0, all->best_loss = std::numeric_limits<double>::max(), all->since_best = 0;
}

/// Tokenizes all texts on rank 0 while the other ranks wait. Returns the texts. Collective.
RunTexts make_tokens(const RunContext& run, const Origin& origin, Machine& machine, SignalWatch& watch) {
  RunTexts texts;
  std::vector<TextSet> all;
  agree(run.world, [&] {
    texts = find_texts(run.options, origin.tokenizer, origin.config.vocab_size);
    all = texts.all();
    // A tokenizer that the user names is stored in checkpoints, so it must be valid even if training does not need a tokenizer.
    if (run.world.rank() == 0 && (!run.options.tokenizer.empty() || (!all.empty() && !origin.tokenizer.empty()))) {
      const auto opened = open_tokenizer(origin.tokenizer);
      for (const std::string& warning : opened->warnings()) run.log.warn(warning);
      if (const auto doubt = doubt_tokenizer(*opened, run.options.tokenizer, origin.config.vocab_size, origin.own_tokenizer))
        run.log.warn(*doubt);
    }
    if (!run.options.chat_template.empty()) {
      if (origin.tokenizer.empty() || origin.tokenizer == "bytes")
        throw UserError(
            "--chat-template changes nothing (the run has no tokenizer but bytes); give --tokenizer, too, or leave it out");
      read_chat_template(run.options.chat_template, *open_tokenizer(origin.tokenizer));
    }
  });
  if (run.world.max(all.size()) == 0) return texts;
  std::vector<std::string> said;
  std::string stopped;
  work_meanwhile(
      run.world, run.world.rank() == 0,
      [&](const std::function<bool()>& stop) {
        try {
          said = make_tokens_of_texts(all,
                                      text_reading(run.options, origin.tokenizer, origin.config.vocab_size,
                                                   [&](const std::string& text) { run.log.warn(text); }),
                                      stop);
        } catch (const TokenizingStopped& request) {
          stopped = request.what();
        }
      },
      [&] { return watch.poll().stop > 0; });
  for (const std::string& line : said) run.log.say(wrapped(line));
  if (restart_process_peak()) {
    machine.start_bytes = std::min(machine.start_bytes, process_peak_bytes());
    machine.measured_since = "its texts were tokenized";
  }
  if (run.world.all(stopped.empty())) return texts;
  if (const std::string problem = watch.honoured_stop(); !problem.empty()) run.log.warn(problem);
  throw CollectiveError(stopped, 0, true, exit_code::stopped);
}

void warn_of_files(const RunContext& run, bool same_tokens) {
  const bool is_in_both = report_files(
      run.options, [&](const std::string& line) { run.log.say(line); }, [&](const std::string& text) { run.log.warn(text); });
  if (same_tokens && !is_in_both)
    run.log.warn(
        "the data of --valid have the same tokens as the training data (the model is validated on what it was trained on); "
        "give other data");
}

Padding find_padding(const RunContext& run, const Mixture& mixture, const TrainBatches& batches) {
  constexpr std::uint64_t most = 65536;  // sequences
  std::vector<std::uint32_t> columns(std::min(most, mixture.sequences()));
  for (std::size_t s = 0; s < columns.size(); ++s) columns[s] = batches.columns(s);
  return padding_of(columns, column_rule(run.options), run.options.seed);
}

/// Says what padding costs, and what would cost less.
void report_padding(const RunContext& run, const Padding& padding) {
  const TrainOptions& options = run.options;
  if (padding.most == 0 || (padding.least == options.sharding.batch.T && padding.as_read == 0)) return;
  std::string better;
  const double enough = padding.as_read - 0.05;  // a smaller gain is not worth an option
  if (!options.group_by_length && options.break_mode != BreakMode::none && padding.by_length < enough)
    better += format("; --group-by-length: {:.1f} %", 100 * padding.by_length);
  if (options.break_mode == BreakMode::eos && padding.best_fit < enough)
    better +=
        format("; --packing best-fit with --break-mode complete and --document-attention: {:.1f} %", 100 * padding.best_fit);
  run.log.say(wrapped("data: " + describe(padding, column_rule(options)) + better));
}

void report_data(const RunContext& run, const Samples& samples) {
  report_counts(
      samples.counts(), samples.tokens().name(), [&](const std::string& line) { run.log.say(wrapped(printable(line))); },
      [&](const std::string& warning) { run.log.warn(warning); });
  if (!samples.doubt().empty()) run.log.warn(samples.doubt());
}

/// Warns of suspicious data. Each rank checks its own part of the data. Collective.
void doubt_data(const RunContext& run, const Origin& origin, const TrainData& data, std::size_t most, bool same_tokens,
                const Progress& progress) {
  const std::size_t vocabulary = origin.config.vocab_size;
  bool doubted = false;
  const auto warn_of_type = [&](const Tokens& tokens) {
    const std::optional<std::string> doubt = doubt_type(tokens, vocabulary);
    if (doubt) run.log.warn(*doubt);
    doubted |= doubt.has_value();
    if (const std::string unread = tokens.unread(); !unread.empty()) run.log.warn(unread);
  };
  const auto& ingredients = data.mixture.ingredients();
  for (const Ingredient& each : ingredients) {
    report_data(run, each.samples);
    warn_of_type(each.samples.tokens());
    if (each.samples.documents() == 1)
      run.log.warn(format(
          "{} is one document, so {} changes little (a file of plain text is one document; fsdp-tokenize --append-eos ends "
          "each document with a token)",
          each.samples.tokens().name(), run.options.break_mode != BreakMode::none ? "--break-mode" : "--document-attention"));
  }
  const auto has_mask = [](const Ingredient& each) { return each.samples.mask() != nullptr; };
  if (const auto whole = std::find_if_not(ingredients.begin(), ingredients.end(), has_mask);
      whole != ingredients.end() && std::any_of(ingredients.begin(), ingredients.end(), has_mask))
    run.log.warn(
        format("all tokens of {} count in the loss (it has no loss mask, but other data sets have one in their files); if only "
               "some of its tokens are to count, give its mask and those files with --mask",
               whole->samples.tokens().name()));
  report_padding(run, data.padding);
  if (data.valid) report_data(run, data.valid->samples), warn_of_type(data.valid->samples.tokens());
  agree(run.world, [&] {
    if (run.world.rank() == 0) warn_of_files(run, same_tokens);
  });
  if (!doubted && most < vocabulary / 4)
    run.log.warn(format(
        "the largest token of {} is {}, but the model's vocabulary has {} tokens (were the data made with its tokenizer?)",
        data.mixture.description(), most, vocabulary));
  if (origin.checkpoint)
    if (const std::string moved =
            describe_moved_end(parse_json(origin.checkpoint->header().options_json), progress.schedule_end, run.options,
                               schedule_of(run.options, progress, data.batches), progress.update);
        !moved.empty())
      run.log.warn(moved);
  const std::size_t per_update = batch_cut(run.options.sharding, run.world).sequences_per_update();
  if (ingredients.size() == 1 && !run.options.max_epoch && data.mixture.sequences() < per_update)
    run.log.warn(format("an update takes {}, but {} has only {}: an update reads some of them more than once",
                        plural(per_update, "sequence"), data.mixture.description(), data.mixture.sequences()));
  if (const std::uint64_t last = last_update(run.options, progress, &data.batches);
      last > 0 && run.options.schedule.warmup >= last)
    run.log.warn(format("the learning rate never reaches --lr (--warmup-updates is {}, and the run ends after update {})",
                        run.options.schedule.warmup, last));
}

}  // namespace

Cut data_cut(const TrainOptions& options) {
  return {options.sharding.batch.T,        options.break_mode, options.end_of_document,
          options.sharding.plan.documents, options.long_rows,  options.packing};
}

ColumnRule column_rule(const TrainOptions& options) {
  return {options.sharding.batch.B, options.sharding.batch.T, options.execution.pad_to_multiple_of};
}

std::string valid_name(const TrainOptions& options) {
  return !options.valid.empty() ? options.valid : valid_data_of(options.data).value_or("");
}

std::vector<TextSet> RunTexts::all() const {
  std::vector<TextSet> both = train;
  both.insert(both.end(), valid.begin(), valid.end());
  return both;
}

RunTexts find_texts(const TrainOptions& options, const std::string& tokenizer, std::size_t vocab_size) {
  if (options.end_of_document && vocab_size > 0 && *options.end_of_document >= vocab_size)
    throw UserError(
        format("--eos-token-id {} is not a token of the model (its vocabulary size is {}); give the token that ends documents",
               *options.end_of_document, vocab_size));
  const std::string valid = valid_name(options);
  const RunTexts texts = {texts_in(options.data, Split::train),
                          valid.empty() ? std::vector<TextSet>() : texts_in(valid, Split::valid)};
  try_opening(options.data, Split::train);
  if (!valid.empty()) require_no_weights(valid), try_opening(valid, Split::valid);
  const std::vector<TextSet> all = texts.all();
  if (all.empty() && options.chat)
    throw UserError("--chat changes nothing (the data are tokens already); leave it out, or give the conversations as JSON");
  if (all.empty()) return texts;
  if (options.chat && tokenizer == "bytes")
    throw UserError("--chat does not go with bytes as tokens (they have no chat template); give --tokenizer, or --model DIR");
  if (tokenizer.empty())
    throw UserError(format("'{}' is text, but no tokenizer is known{}; give --tokenizer, or --model DIR", all.front().name,
                           vocab_size == 0 ? ""
                                           : format(" (the model has {} tokens, and the folder that it came from has no "
                                                    "tokenizer)",
                                                    vocab_size)));
  for (const std::string& masks : {options.mask, options.valid_mask}) open_masks(masks);
  return texts;
}

bool report_files(const TrainOptions& options, const Warn& say, const Warn& warn) {
  const bool has_valid = !options.valid.empty();
  for (const std::string& doubt :
       {options.mask.empty() ? unused_masks(options.data, Split::train, "--mask") : "",
        has_valid && options.valid_mask.empty() ? unused_masks(options.valid, Split::valid, "--valid-mask") : ""})
    if (!doubt.empty()) warn(doubt);
  const bool reads_valid = !has_valid && valid_data_of(options.data);
  if (reads_valid)
    say(format("validation: {} of '{}'", plural(files_of_data(options.data, Split::valid).size(), "file"),
               printable(options.data)));
  auto unread = unread_files(options.data, reads_valid);
  if (has_valid) {
    std::set<std::string> of_valid;
    for (const auto& path : files_of_data(options.valid, Split::valid)) of_valid.insert(whole_path(path));
    std::erase_if(unread, [&](const auto& path) { return of_valid.contains(whole_path(path)); });
  }
  if (!unread.empty())
    say(wrapped(printable(format("not read: {}{} (by the names, not of the split train)", unread.front().string(),
                                 unread.size() == 1 ? "" : format(" and {} more", plural(unread.size() - 1, "file"))))));
  const auto both = has_valid ? file_in_both(options.data, options.valid) : std::nullopt;
  if (both)
    warn(
        format("'{}' is in the training data and in --valid (the model is validated on what it was trained on); leave it out "
               "of one of them",
               both->string()));
  return both.has_value();
}

TextReading text_reading(const TrainOptions& options, const std::string& tokenizer, std::size_t vocab_size, Warn warn) {
  return {.tokenizer = tokenizer,
          .json_field = options.json_field,
          .skip_invalid = options.skip_invalid,
          .chat = options.chat,
          .form = options.form,
          .chat_template = options.chat_template,
          .documents = needs_documents(data_cut(options)),
          .folder = text_tokens(options),
          .vocab_size = vocab_size,
          .warn = std::move(warn)};
}

ValidData::ValidData(std::unique_ptr<Tokens> tokens, const TrainOptions& options, const BatchCut& cut, std::size_t vocab_size)
    : samples(std::move(tokens), data_cut(options), open_masks(options.valid_mask)),
      batches(samples, cut, vocab_size, options.max_valid_steps) {}

nlohmann::json TrainData::counts() const {
  nlohmann::json all = nlohmann::json::array();
  const auto add = [&](const Samples& samples, const char* split) {
    all.push_back({{"name", samples.tokens().name()}, {"split", split}});
    all.back().update(nlohmann::json(to_json(samples.counts())));
  };
  for (const Ingredient& each : mixture.ingredients()) add(each.samples, "train");
  if (valid) add(valid->samples, "valid");
  return all;
}

Passes TrainData::passes(std::uint64_t before, std::uint64_t after) const {
  return {before / mixture.sequences(), after / mixture.sequences()};
}

std::uint64_t ValidData::sum(std::uint64_t token_sum, const TrainOptions& options) const {
  if (token_sum == 0) return 0;
  const Cut& cut = samples.cut();
  std::string told = format("{} {} {} {} {} {} {} {}", token_sum, samples.documents_sum(), samples.mask_sum(), cut.T,
                            static_cast<int>(cut.mode), cut.positions, cut.end_of_document.value_or(0), options.use_ema);
  if (cut.long_rows != LongRows::split || cut.packing == Packing::best_fit)
    told += format(" {} {}", static_cast<int>(cut.long_rows), static_cast<int>(cut.packing));
  if (options.max_valid_steps > 0) told += format(" first {}", batches.targets());
  return checksum(told.data(), told.size()) | 1;
}

TrainData::TrainData(const RunContext& run, const Origin& origin, const std::vector<TextSet>& texts, Mixture opened,
                     std::unique_ptr<const ValidData> valid_data, std::uint64_t token_sum, Progress& progress)
    : mixture(std::move(opened)),
      batches(mixture, batch_cut(run.options.sharding, run.world), origin.config.vocab_size,
              find_position(run, origin, mixture, texts, token_sum, progress)),
      valid(std::move(valid_data)),
      padding(find_padding(run, mixture, batches)) {
  check_schedule(schedule_of(run.options, progress, batches));
}

std::unique_ptr<const TrainData> open_train_data(const RunContext& run, const Origin& origin, Machine& machine,
                                                 Progress& progress, SignalWatch& watch, bool validates) {
  if (is_done(run.options, progress, nullptr) && !validates) return nullptr;
  require_same_files(
      run.world,
      [&] {
        return FileLists{files_of_data(run.options.data, Split::train), files_of_data(valid_name(run.options), Split::valid),
                         files_of_data(run.options.mask, Split::train), files_of_data(run.options.valid_mask, Split::train)};
      },
      run.options.no_verify);
  const RunTexts texts = make_tokens(run, origin, machine, watch);
  require_same_files(
      run.world,
      [&] {
        FileLists files;
        for (const TextSet& text : texts.all()) files.push_back(files_of_tokens(text, text_tokens(run.options)));
        return files;
      },
      run.options.no_verify);
  const std::size_t vocab_size = origin.config.vocab_size;
  Mixture mixture = agree(run.world, [&] {
    return open_mixture(run.options.data, data_cut(run.options), run.options.mask, text_tokens(run.options));
  });
  const TokenCheck check = check_tokens(run.world, mixture, vocab_size);
  auto valid = agree(run.world, [&] { return open_valid_data(run, vocab_size); });
  bool same_tokens = false;
  if (valid) {
    const TokenCheck of_valid = check_tokens(run.world, valid->samples.tokens(), vocab_size);
    compare_validations(run, valid->sum(of_valid.sum, run.options), progress);
    same_tokens = check.sum != 0 && check.sum == sum_of_sets({of_valid.sum});
  }
  auto data = agree(run.world, [&] {
    return std::make_unique<const TrainData>(run, origin, texts.train, std::move(mixture), std::move(valid), check.sum,
                                             progress);
  });
  doubt_data(run, origin, *data, check.largest, same_tokens, progress);
  return data;
}

void try_data(const RunContext& run, const Origin& origin, Machine& machine, SignalWatch& watch) {
  if (run.options.data.empty()) return;
  std::optional<ScratchFolder> scratch;
  TrainOptions options = run.options;
  std::uint64_t text_bytes = 0;
  agree(run.world, [&] {
    if (run.world.rank() == 0)
      options.save.folder = scratch.emplace(std::filesystem::temp_directory_path(), "fsdp-train").path();
    for (const TextSet& text : find_texts(options, origin.tokenizer, origin.config.vocab_size).all())
      text_bytes += TextSource(text.files).size_of_files();
  });
  constexpr std::uint64_t most = std::uint64_t{1} << 30;
  if (run.world.max(text_bytes) > most)
    return run.log.say(wrapped(format("data: not counted, because a dry run tokenizes at most {} of text, and these are {}",
                                      format_bytes(double{most}), format_bytes(static_cast<double>(text_bytes)))));
  const RunContext dry = {options, run.world, run.log};
  make_tokens(dry, origin, machine, watch);
  agree(run.world, [&] {
    if (run.world.rank() != 0) return;
    const Mixture mixture = open_mixture(options.data, data_cut(options), options.mask, text_tokens(options));
    for (const Ingredient& each : mixture.ingredients())
      check_vocabulary(each.samples.tokens(), origin.config.vocab_size, 0, 1), report_data(run, each.samples);
    if (const auto valid = open_valid_data(dry, origin.config.vocab_size))
      check_vocabulary(valid->samples.tokens(), origin.config.vocab_size, 0, 1), report_data(run, valid->samples);
  });
}

bool stopped_early(const TrainOptions& options, const Progress& progress) {
  return options.early_stopping > 0 && progress.validations && progress.validations->since_best >= options.early_stopping;
}

bool is_done(const TrainOptions& options, const Progress& progress, const TrainData* data) {
  return stopped_early(options, progress) || (options.max_update != 0 && progress.update >= options.max_update) ||
         (data && data->batches.at_end(progress.data.sequences));
}

std::uint64_t last_update(const TrainOptions& options, const Progress& progress, const TrainBatches* batches) {
  const auto left = batches ? batches->updates_left(progress.data.sequences) : std::nullopt;
  if (!left) return options.max_update;
  const std::uint64_t of_data = progress.update + *left;
  return options.max_update == 0 ? of_data : std::min(of_data, options.max_update);
}

Schedule schedule_of(const TrainOptions& options, const Progress& progress, const TrainBatches& batches) {
  Schedule schedule = options.schedule;
  if (schedule.total == 0) schedule.total = last_update(options, progress, &batches);
  if (options.warmup_ratio > 0) schedule.warmup = warmup_of(options.warmup_ratio, schedule.total);
  return schedule;
}

BatchSource::BatchSource(const LoopContext& loop, const TrainData& data) : loop_(loop), data_(data) {
  note_end_of_schedule();
  begin_reading(loop.engine.progress().data.sequences);
  agree(loop.world, [&] {
    await();
    if (problem_) std::rethrow_exception(problem_);
  });
  waited_s_ = 0;
}

void BatchSource::begin_reading(std::uint64_t position) {
  if (data_.batches.at_end(position)) return;
  reader_.start([this, position] {
    Executor& executor = loop_.engine.executor();
    const auto [B, T] = loop_.options.sharding.batch;
    next_work_ = {};
    for (std::size_t k = 0; k < loop_.options.sharding.plan.micro_batches; ++k) {
      std::int32_t *const inputs = executor.next_batch(k), *const targets =
                                                               inputs + executor.batch().inputs / sizeof(std::int32_t);
      data_.batches.read(position, k, inputs, targets);
      std::size_t present = 0;
      for (std::size_t b = 0; b < B; ++b) {
        std::size_t columns = 0;
        for (std::size_t t = 0; t < T; ++t)
          if (targets[b * T + t] >= 0) ++next_work_.targets, columns = t + 1;
        present += columns;
      }
      const std::size_t columns = executor.shorten(k), positions = B * columns;
      next_work_.positions += positions, next_work_.padding += positions - present;
      next_work_.flops += static_cast<double>(positions) * loop_.engine.model().transformer().flops_per_token(columns);
    }
  });
}

double BatchSource::learning_rate() const {
  const Progress& progress = loop_.engine.progress();
  return fsdp::learning_rate(schedule_of(loop_.options, progress, data_.batches), progress.update + 1);
}

double BatchSource::targets() const {
  return static_cast<double>(data_.batches.targets(loop_.engine.progress().data.sequences));
}

void BatchSource::advance() {
  Progress& progress = loop_.engine.progress();
  const std::uint64_t before = std::exchange(progress.data.sequences, data_.batches.after(progress.data.sequences));
  passes_ = data_.passes(before, progress.data.sequences);
  note_end_of_schedule();
}

void BatchSource::note_end_of_schedule() {
  Progress& progress = loop_.engine.progress();
  const Schedule schedule = schedule_of(loop_.options, progress, data_.batches);
  progress.schedule_end = has_end(schedule) ? schedule.total : 0;
}

void BatchSource::load(const UpdateScalars& scalars) {
  work_ = next_work_;
  loop_.engine.executor().begin_update(scalars);
  begin_reading(data_.batches.after(loop_.engine.progress().data.sequences));
}

void BatchSource::await() {
  wait_ns_ = 0;
  if (is_done(loop_.options, loop_.engine.progress(), &data_)) return;
  const FlightNote note(loop_.flight, "read the batch", loop_.engine.progress().update + 1);
  const Timer timer;
  try {
    reader_.finish();
  } catch (...) {
    problem_ = std::current_exception();
  }
  wait_ns_ = std::llround(1e9 * timer.seconds());
  waited_s_ += timer.seconds();
}

void BatchSource::refuse() {
  agree(loop_.world, [&] {
    try {
      if (problem_) std::rethrow_exception(problem_);
    } catch (const std::exception& error) {
      throw RunError(
          format("{}; update {} is saved, and the same command continues from there once the data are complete again",
                 error.what(), loop_.engine.progress().update));
    }
  });
  throw InternalError("a rank could not read its data, but reported no error");
}

}  // namespace fsdp
