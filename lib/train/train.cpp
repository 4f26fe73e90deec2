#include "train/train.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/program.hpp"
#include "checkpoint/save_folder.hpp"
#include "checkpoint/stored.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "record/flight.hpp"
#include "train/agreement.hpp"
#include "train/reporter.hpp"
#include "train/save_space.hpp"
#include "train/setup.hpp"
#include "train/validation.hpp"

namespace fsdp {

namespace {

/// Throws CollectiveError if the options differ between ranks, which can happen because every rank parses its own command line.
/// Collective.
void require_same_options(const TrainOptions& options, Group& world) {
  const std::string told = json_text(to_json(options));
  require_same(world, told, [&](const std::string& first) {
    const nlohmann::json mine = parse_json(told), theirs = parse_json(first);
    for (const auto& [key, value] : mine.items())
      if (!theirs.contains(key) || theirs[key] != value)
        throw UserError(
            format("--{} is {} here and {} on rank 0 (all ranks need the same options); start all ranks with the same options",
                   key, json_excerpt(value), theirs.contains(key) ? json_excerpt(theirs[key]) : "unknown"));
  });
}

/// A sentence that tells the user who stopped the run how to continue it.
std::string how_to_continue(const TrainOptions& options) {
  const std::vector<std::string> once = options_of_first_start(options);
  std::string text = "the same command continues";
  if (!once.empty()) text = format("the same command without {} continues", fmt::join(once, " and "));
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) text += " (mpirun reports exit code 75 as an abort; all is saved)";
  return text;
}

void say_nothing_to_do(const RunContext& run, Engine& engine, const TrainData* data) {
  const Progress& progress = engine.progress();
  engine.saver().link_best(run.options.save, progress.validations);  // a start that was killed may have left an older link
  const std::string next = stopped_early(run.options, progress)
                               ? "nothing to do: validations have stopped the run; raise --early-stopping to continue"
                           : data ? "nothing to do: all passes over the data are done; raise --max-epoch to continue"
                                  : "nothing to do: all updates are done; raise --max-update to continue";
  run.log.end({.step = progress.update, .tokens = progress.tokens, .next = next});
}

CheckpointHeader make_header(const TrainOptions& options, const Engine& engine, const Machine& machine,
                             const std::string& first_start,
                             std::shared_ptr<const std::vector<TokenizerFile>> tokenizer_files) {
  CheckpointHeader header = engine.header();
  header.options_json = json_text(to_json(options));
  header.arithmetic = arithmetic_of(machine);
  header.first_start = first_start;
  header.tokenizer_files = std::move(tokenizer_files);
  return header;
}

/// Returns true if the path is below the save folder, as far as the words tell, so that all ranks agree.
bool is_in_save_folder(const TrainOptions& options, const std::filesystem::path& path) {
  const auto plain = [](const std::filesystem::path& given) {
    const std::filesystem::path normal = given.lexically_normal();
    return normal.has_filename() ? normal : normal.parent_path();
  };
  const std::filesystem::path below = plain(path).lexically_relative(plain(options.save.folder));
  return !path.empty() && !below.empty() && *below.begin() != "..";
}

/// The last step of the run, as the save folder; or the best one, if it is another one.
std::string step_to_use(const TrainOptions& options, const Progress& progress) {
  const std::filesystem::path& folder = options.save.folder;
  const std::string best = best_checkpoint(folder).filename().string(), last = stored::step_name(progress.update);
  if (best.empty() || best == last) return folder.string();
  return format("{} (the best step, {}; {} has the last one, {})", (folder / best_name).string(), best, folder.string(), last);
}

/// Ends the run after an update with a loss or gradient that is not finite. Collective; all ranks throw CollectiveError.
[[noreturn]] void refuse(const LoopContext& loop, const UpdateScalars& scalars, const UpdateResult& result) {
  const UnitTypes& types = loop.options.sharding.types;
  Saver& saver = loop.engine.saver();
  if (types.parameter == DType::f16)
    loop.log.say(format("overflow at loss scale {}; the scale is not lowered further", scalars.loss_scale));
  const std::string problem = describe_refused(loop.engine.model(), loop.world, scalars, result);
  saver.finish();  // completes a save that has begun
  throw CollectiveError(
      format("{}; lower --lr, lengthen --warmup-updates or set --clip-norm{}{}, and start again from {}", problem,
             types.parameter == DType::f16
                 ? ", lower --fp16-init-scale, --min-loss-scale or --threshold-loss-scale, or use --bf16"
                 : "",
             types.reduce == DType::f16 ? ", or reduce in --reduce-dtype bf16 or fp32" : "",
             saver.last_update() > 0 ? format("the last complete checkpoint, that of update {}", saver.last_update())
                                     : "the beginning"),
      0, true, exit_code::failed);
}

/// The closing lines of a run that has done all of its updates, and the exit code. Collective.
int end_done(const LoopContext& loop, Reporter& reporter) {
  const Progress& progress = loop.engine.progress();
  if (const auto& valid = progress.validations; stopped_early(loop.options, progress))
    loop.log.say(format("stopped early: {} had no smaller loss than {:.4f}, that of update {}",
                        plural(valid->since_best, "validation"), valid->best_loss, valid->best_update));
  reporter.finish(loop.options.save.none
                      ? "done; nothing is saved (--no-save)"
                      : "done; next: fsdp-evaluate, fsdp-inspect or fsdp-consolidate " + step_to_use(loop.options, progress));
  loop.world.barrier();
  return exit_code::done;
}

/// The same for a run that was asked to stop.
int end_stopped(const LoopContext& loop, Reporter& reporter, Agreement& agreement) {
  const bool none = loop.options.save.none;
  loop.log.stop(loop.engine.progress().update, agreement.stop_reason());
  reporter.finish("stopped on request; " + (none ? "nothing is saved (--no-save), so the same command starts from the beginning"
                                                 : how_to_continue(loop.options)));
  loop.world.barrier();
  return none ? exit_code::failed : exit_code::stopped;
}

/// The training loop. Returns the exit code. Collective.
int run_updates(const LoopContext& loop, const TrainData& data, const Missed& missed, const SamplePrompt& prompt,
                Agreement& agreement, Reporter& reporter, BatchSource& batches) {
  const TrainOptions& options = loop.options;
  Engine& engine = loop.engine;
  const Progress& progress = engine.progress();
  TextSampler sampler(loop, prompt);
  const auto is_over = [&] { return is_done(options, progress, &data); };
  const auto validate_now = [&] { return validate(loop, data.valid.get(), [&] { return agreement.must_stop(); }); };
  const std::uint64_t sequences = progress.data.sequences;
  const bool was_due = every(options.validate_interval_updates, progress.update) ||
                       every(options.validate_interval_epochs,
                             data.passes(sequences - std::min<std::uint64_t>(sequences, options.total_batch_size), sequences));
  const bool has_missed = missed.validation && was_due && !is_over();
  if (progress.update == 0 ? options.eval_on_start : has_missed) {
    const Validated first = validate_now();
    save(loop, false);  // the step exists, but may be the best one now
    if (first == Validated::interrupted) return agreement.answer_stop(), end_stopped(loop, reporter, agreement);
  }
  if (missed.sample && !is_over()) sampler.run();
  while (!is_over()) {
    const UpdateScalars scalars = engine.next_update(batches.learning_rate(), batches.targets());
    reporter.before_update();
    batches.load(scalars);
    engine.executor().forward_backward();  // all micro-batches, with their gathers and reductions
    engine.executor().gradient_norm();
    const UpdateResult result = engine.executor().update_parameters();
    const Verdict verdict = engine.judge(result, scalars.tokens);
    if (verdict == Verdict::refused) refuse(loop, scalars, result);
    batches.advance();
    reporter.after_update(scalars, result, verdict);
    batches.await();

    Decision next = decide(options, agreement.after(verdict, is_over(), batches, reporter));
    if (next.report) reporter.report(agreement.ranks(), agreement.data_wait_ns(), agreement.largest_loss());
    if (next.finish_save) engine.saver().finish();
    if (next.validate_first) next.note(validate_now());
    if (next.saves()) save(loop, next.save == Decision::Save::complete);
    if (next.refuse_data) batches.refuse();
    if (next.answer_save) agreement.answer_save();
    if (next.validate && validate_now() == Validated::interrupted) {
      next.note(Validated::interrupted);
      save(loop, true);
    }
    if (next.answer_stop) agreement.answer_stop();
    if (next.stop) return end_stopped(loop, reporter, agreement);
    if (next.sample) sampler.run();
  }
  if (options.judges() && !is_validated(progress)) validate(loop, data.valid.get());
  save(loop, true);
  if (!is_validated(progress)) validate(loop, data.valid.get());
  return end_done(loop, reporter);
}

}  // namespace

int train(const TrainOptions& given, Communicator& world) {
  require_same_options(given, world);
  TrainOptions options = given;
  SignalWatch watch(options.save.folder, world.rank() == 0);
  Machine machine = find_machine(options, world);
  count_files(options.save, world, *machine.node);
  Metrics log({}, options.log_interval, world.rank() == 0, stderr, options.log_format, with_option_names);
  const RunContext run = {options, world, log};
  const bool logs_in_saves = is_in_save_folder(options, options.log_file) || is_in_save_folder(options, options.tensorboard);
  if (!logs_in_saves && !options.dry_run) open_metrics(run);
  const std::unique_ptr<SaveLock> lock = take_save_folder(run, watch);
  const std::string first_start = first_start_of(options);
  drop_options_of_first_start(run, options);
  const std::unique_ptr<TraceFile> trace = open_trace(run);
  if (lock && !lock->taken_over().empty()) log.say(lock->taken_over());
  Origin origin = find_origin(options, world);
  for (const std::string& warning : origin.warnings) log.warn(warning);
  if (!origin.new_tokens.empty()) log.say(origin.new_tokens);
  find_attention(run, origin, machine);
  Progress first = first_progress(run, origin, machine);
  Engine engine = make_engine(run, origin, machine, lock.get());
  engine.attention = machine.attention.library;
  Progress& progress = engine.progress() = std::move(first);
  engine.model_folder = origin.model_folder, engine.base = origin.base;
  const ShardedModel& model = engine.model();
  for (const std::string& warning : model.warnings()) log.warn(warning);
  const MemoryAccount memory =
      memory_account(options, model, world, *machine.node,
                     {.snapshot = engine.saves_meanwhile(),
                      .trace_bytes = options.trace.file.empty() ? 0 : Recorder::bytes(model.plan(), options.trace.updates)});
  if (const std::size_t smaller = model.model().device().logits_bytes, whole = engine.described().device().logits_bytes;
      smaller < whole)
    log.say(
        format("--memory-limit: pieces of logits and MLPs have {} instead of {}, so the last bits are not those of a run "
               "without it",
               format_bytes(static_cast<double>(smaller)), format_bytes(static_cast<double>(whole))));
  if (const std::size_t limit = engine.options().recompute_to_fit; limit > 0) {
    const PlanOptions& plan = engine.options().sharding.plan;
    log.say(format("--{}: {} of {} blocks are recomputed; a rank then needs {} of {}",
                   options.recompute_num_layers == "auto" ? "recompute-num-layers auto" : "memory-limit",
                   plan.recomputed_blocks, model.model().blocks.size(), format_bytes(static_cast<double>(memory.total())),
                   format_bytes(static_cast<double>(limit))));
    log.say("fits with: " + with_option_names(describe_choice(plan)));
  }
  if (options.dry_run) {
    if (world.rank() == 0) print_plan(model, memory, machine.node->size());
    try_data(run, origin, machine, watch);
    return exit_code::done;
  }
  const auto tokenizer_files = keep_tokenizer_files(run, origin);
  const Missed missed = find_missed(run, origin, progress);
  const std::unique_ptr<const TrainData> data =
      open_train_data(run, origin, machine, progress, watch, missed.validation && missed.certain);
  const SamplePrompt prompt = make_sample_prompt(run, origin);
  if (logs_in_saves) open_metrics(run);
  announce(run, machine, model, memory, progress, data.get(), origin);
  const bool validates_at_end = missed.validation && missed.certain && data && data->valid;
  if (is_done(options, progress, data.get()) && !validates_at_end)
    return say_nothing_to_do(run, engine, data.get()), exit_code::done;

  return with_flight_record(run, machine.kind, [&](FlightLanes& flight) {
    const LoopContext loop = {run, engine, flight, make_header(options, engine, machine, first_start, tokenizer_files)};
    Agreement agreement(loop, watch, lock.get());
    FlightObserver operations(flight, engine.model().plan(), engine.model().layout());
    prepare(loop, machine, memory, origin, operations);
    check_save_folder(run, model.layout(), !model.plan().averages.empty(), progress,
                      last_update(options, progress, &data->batches));
    engine.saver().begin_at(options.save.folder, progress.update);
    engine.saver().link_best(options.save, progress.validations);  // the last start may have ended before it did
    BatchSource batches(loop, *data);
    Reporter reporter(loop, machine, memory, batches, trace.get());
    return run_updates(loop, *data, missed, prompt, agreement, reporter, batches);
  });
}

}  // namespace fsdp
