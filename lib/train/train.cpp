#include "train/train.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "base/version.hpp"
#include "checkpoint/save_folder.hpp"
#include "checkpoint/stored.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "train/flight.hpp"
#include "train/job_end.hpp"
#include "train/reporter.hpp"
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

void say_nothing_to_do(const RunContext& run, const Progress& progress, const TrainData* data) {
  const TrainOptions& options = run.options;
  // A start that was killed may have left an older link.
  if (progress.validations && run.world.rank() == 0) link_best_step(run, *progress.validations);
  const std::string next = stopped_early(options, progress)
                               ? "nothing to do: validations have stopped the run; raise --early-stopping to continue"
                           : data ? "nothing to do: all passes over the data are done; raise --max-epoch to continue"
                                  : "nothing to do: all updates are done; raise --max-update to continue";
  run.log.end({.step = progress.update, .tokens = progress.tokens, .next = next});
}

/// The values that a rank sends to the others after an update.
struct Told {
  std::int64_t stop, save;    // the number of requests to stop and to save
  std::int64_t is_due;        // 1 on rank 0 if a save is due by its clock
  std::int64_t save_stage;    // the stage of this rank's part of the save under way
  std::int64_t cannot_read;   // 1 if this rank cannot read its part of the next batch
  std::int64_t computing_ns;  // this rank's computing time in this update; 0: unknown
  std::int64_t data_wait_ns;  // this rank's wait for its part of the next batch
  std::int64_t loss;          // the bits of this rank's mean loss in this update, a double
};

struct Agreed {
  Requests asked;
  bool due = false;          // a save is due by the clock of rank 0
  bool saved = false;        // the save under way is complete, or only finish() can complete it
  bool cannot_read = false;  // some rank cannot read its part of the next batch
  bool ends = false;         // on rank 0: the end of the job is near
  bool wanted = false;       // on rank 0: a later start of the job waits for the save folder
};

/// Exchanges `Told` between all ranks after an update, in one all-reduce (sum). The buffer is allocated once, at construction.
class Agreement {
 public:
  /// `lock` and `job_end` are null on all ranks except rank 0. Without --stop-before, `job_end` is null on rank 0, too.
  Agreement(const LoopContext& loop, SignalWatch& watch, JobEnd* job_end, SaveLock* lock)
      : loop_(loop),
        watch_(watch),
        job_end_(job_end),
        lock_(lock),
        words_(fields * static_cast<std::size_t>(loop.world.size())),
        computing_ns_(words_.size() / fields) {}

  /// Exchanges the values of all ranks and returns the result, for example the largest number of requests on any rank. Only
  /// rank 0 knows the end of the job. Collective.
  Agreed reach(const Saver& saver, const BatchSource& batches, const Reporter& reporter) {
    const FlightNote note(loop_.flight, "agree on requests to stop or save", loop_.progress.update, FlightNote::Kind::exchange);
    const Requests mine = watch_.poll();
    Agreed agreed;
    agreed.ends = job_end_ && job_end_->is_near();
    agreed.wanted = lock_ && lock_->is_wanted();
    const Told told = {.stop = narrow<std::int64_t>(mine.stop) + agreed.ends + agreed.wanted,
                       .save = narrow<std::int64_t>(mine.save),
                       .is_due = loop_.world.rank() == 0 && saver.is_due(),
                       .save_stage = static_cast<std::int64_t>(saver.stage()),
                       .cannot_read = !batches.can_read(),
                       .computing_ns = reporter.computing_ns(),
                       .data_wait_ns = batches.wait_ns(),
                       .loss = std::bit_cast<std::int64_t>(reporter.own_loss())};
    std::fill(words_.begin(), words_.end(), 0);
    std::memcpy(words_of(loop_.world.rank()), &told, sizeof told);
    loop_.world.sum(words_);
    data_wait_ns_ = 0;
    largest_loss_ = -std::numeric_limits<double>::infinity();
    bool working = false, stuck = false;
    for (int rank = 0; rank < loop_.world.size(); ++rank) {
      Told theirs;
      std::memcpy(&theirs, words_of(rank), sizeof theirs);
      agreed.asked.stop = std::max(agreed.asked.stop, static_cast<std::size_t>(theirs.stop));
      agreed.asked.save = std::max(agreed.asked.save, static_cast<std::size_t>(theirs.save));
      agreed.due = agreed.due || theirs.is_due > 0;
      working |= theirs.save_stage == static_cast<std::int64_t>(CheckpointSave::Stage::working);
      stuck |= theirs.save_stage == static_cast<std::int64_t>(CheckpointSave::Stage::stuck);
      agreed.cannot_read = agreed.cannot_read || theirs.cannot_read > 0;
      computing_ns_[static_cast<std::size_t>(rank)] = theirs.computing_ns;
      data_wait_ns_ = std::max(data_wait_ns_, theirs.data_wait_ns);
      largest_loss_ = std::max(largest_loss_, std::bit_cast<double>(theirs.loss));
    }
    agreed.saved = saver.saving() && (stuck || !working);
    return agreed;
  }
  /// The time that each rank computed in the last update, by rank; 0 if unknown.
  const std::vector<std::int64_t>& computing_ns() const { return computing_ns_; }
  /// The wait for the next batch on the rank that waited longest.
  std::int64_t data_wait_ns() const { return data_wait_ns_; }
  /// The largest of all ranks' mean losses in the last update.
  double largest_loss() const { return largest_loss_; }

 private:
  static constexpr std::size_t fields = sizeof(Told) / sizeof(std::int64_t);
  std::int64_t* words_of(int rank) { return words_.data() + fields * static_cast<std::size_t>(rank); }

  const LoopContext& loop_;
  SignalWatch& watch_;
  JobEnd* job_end_;
  SaveLock* lock_;
  std::vector<std::int64_t> words_, computing_ns_;
  std::int64_t data_wait_ns_ = 0;
  double largest_loss_ = 0;
};

/// Returns the end of the job on rank 0 if --stop-before is given; else null. Collective.
std::unique_ptr<JobEnd> find_job_end(const RunContext& run) {
  const double lead_s = run.options.stop_before_s;
  auto end = agree(run.world, [&] { return lead_s > 0 && run.world.rank() == 0 ? std::make_unique<JobEnd>(lead_s) : nullptr; });
  if (end && !end->seconds_left()) run.log.warn("--stop-before does nothing (this job has no time limit)");
  return end;
}

/// Warns if the last update and the last save together took longer than --stop-before: to stop, a run may need the time of
/// both. Returns true if it warned.
bool warn_of_short_lead(const RunContext& run, const Outlook& outlook) {
  const double needed_s = outlook.update_s + outlook.save_s, lead_s = run.options.stop_before_s;
  if (lead_s == 0 || outlook.save_s < 0 || needed_s <= lead_s) return false;
  run.log.warn(format("--stop-before {} may be too short (the last update and the last save took {} together); raise it",
                      format_duration(lead_s), format_duration(needed_s)));
  return true;
}

CheckpointHeader make_header(const LoopContext& loop, const Machine& machine, const Origin& origin,
                             const std::string& first_start,
                             std::shared_ptr<const std::vector<TokenizerFile>> tokenizer_files) {
  return {.model = loop.model.transformer().config(),
          .progress = loop.progress,
          .strategy = std::string(loop.model.placement().name),
          .world_size = loop.world.size(),
          .shards = loop.model.layout().shards(),
          .units = {loop.model.layout().units().begin(), loop.model.layout().units().end()},
          .optimizer = std::string(loop.options.sharding.optimizer.kind->name),
          .options_json = json_text(to_json(loop.options)),
          .arithmetic = arithmetic_of(machine),
          .model_folder = origin.model_folder,
          .first_start = first_start,
          .base = origin.base,
          .tokenizer_files = std::move(tokenizer_files),
          .version = version_string()};
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

}  // namespace

/// The last step of the run, as the save folder; or the best one, if it is another one.
std::string step_to_use(const TrainOptions& options, const Progress& progress) {
  const std::filesystem::path& folder = options.save.folder;
  const std::string best = best_checkpoint(folder).filename().string(), last = stored::step_name(progress.update);
  if (best.empty() || best == last) return folder.string();
  return format("{} (the best step, {}; {} has the last one, {})", (folder / best_name).string(), best, folder.string(), last);
}

int train(const TrainOptions& given, Communicator& world) {
  require_same_options(given, world);
  TrainOptions options = given;
  SignalWatch watch(options.save.folder, world.rank() == 0);
  Machine machine = find_machine(options, world);
  Metrics log({}, options.log_interval, world.rank() == 0, stderr, options.log_format);
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
  Progress progress = first_progress(run, origin, machine);
  ShardedModel model = make_model(run, origin, machine);
  for (const std::string& warning : model.warnings()) log.warn(warning);
  const MemoryAccount memory = memory_account(options, model, world, *machine.node);
  if (options.dry_run) {
    if (world.rank() == 0) print_plan(model, memory);
    try_data(run, origin, machine, watch);
    return exit_code::done;
  }
  const auto tokenizer_files = keep_tokenizer_files(run, origin);
  const Missed missed = find_missed(run, origin, progress);
  const std::unique_ptr<const TrainData> data =
      open_train_data(run, origin, machine, progress, watch, missed.validation && missed.certain);
  const SamplePrompt prompt = make_sample_prompt(run, origin);
  if (logs_in_saves) open_metrics(run);
  announce(run, machine, model, memory, progress, data.get(), origin.base);
  const auto all_done = [&] { return is_done(options, progress, data.get()); };
  const bool validates_at_end = missed.validation && missed.certain && data && data->valid;
  if (all_done() && !validates_at_end) return say_nothing_to_do(run, progress, data.get()), exit_code::done;

  return with_flight_record(run, machine.kind, [&](FlightLanes& flight) {
    const std::unique_ptr<JobEnd> job_end = find_job_end(run);
    const LoopContext loop = {run, progress, model, flight};
    UpdatePolicy policy(loop, data->batches);
    prepare(loop, machine, memory, origin);
    Executor& executor = model.executor();
    Saver saver(loop, make_header(loop, machine, origin, first_start, tokenizer_files),
                agree(loop.world, [&] { return machine.device->allocate_staging(memory.snapshot); }), lock.get());
    TextSampler sampler(loop, prompt);
    BatchSource batches(loop, *data);
    Reporter reporter(loop, machine, memory, batches, trace.get());
    Agreement agreement(loop, watch, job_end.get(), lock.get());
    const auto outlook = [&] { return Outlook{progress.update + 1, reporter.last_update_s(), saver.last_duration_s()}; };
    if (const std::string text = watch.left_over(); !text.empty()) log.warn(text);
    bool lead_is_short = false;
    std::size_t saves_honoured = 0;
    watch.expect(outlook());
    const auto must_stop = [&] { return watch.poll().stop > 0 || (job_end && job_end->is_near()); };
    const auto validate_now = [&] { return validate(loop, data->valid.get(), saver, must_stop); };
    const auto honour_stop = [&] {
      if (const std::string problem = watch.honoured_stop(); !problem.empty()) log.warn(problem);
    };
    const auto stop_now = [&](const Agreed& agreed) {
      log.stop(progress.update, agreed.ends || (job_end && job_end->is_near()) ? job_end->reason()
                                : agreed.wanted ? "a later start of this job waits for " + options.save.folder.string()
                                                : watch.stop_reason());
      reporter.finish("stopped on request; " +
                      (options.save.none ? "nothing is saved (--no-save), so the same command starts from the beginning"
                                         : how_to_continue(options)));
      world.barrier();
      return options.save.none ? exit_code::failed : exit_code::stopped;
    };
    const auto has_missed = [&] { return data->valid && !is_validated(progress); };  // because the run stops
    if (progress.update == 0 ? options.eval_on_start
                             : missed.validation && every(options.validate_interval_updates, progress.update) && !all_done()) {
      validate_now();
      saver.save(false);  // the step exists, but may be the best one now
      if (has_missed()) return honour_stop(), stop_now({});
    }
    if (missed.sample && !all_done()) sampler.run();
    while (!all_done()) {
      const UpdateScalars scalars = policy.next_update();
      reporter.before_update();
      batches.load(scalars);
      executor.forward_backward();  // all micro-batches, with their gathers and reductions
      executor.gradient_norm();
      const UpdateResult result = executor.update_parameters();
      const Verdict verdict = policy.judge(scalars, result);
      if (verdict == Verdict::refused) refuse_update(loop, saver, scalars, result);
      reporter.after_update(scalars, result, verdict);
      batches.await();

      const Agreed agreed = agreement.reach(saver, batches, reporter);
      const bool done = verdict == Verdict::done, asked = agreed.asked.save > saves_honoured;
      bool stop = agreed.asked.stop > 0;
      if (done) reporter.report(agreement.computing_ns(), agreement.data_wait_ns(), agreement.largest_loss());
      watch.expect(outlook());  // requests that come later are honoured after the next update
      if (agreed.saved) saver.finish();
      lead_is_short = lead_is_short || warn_of_short_lead(run, outlook());
      const bool validates = done && every(options.validate_interval_updates, progress.update) && !all_done() && !stop;
      const bool validates_first = validates && options.judges() && !agreed.cannot_read;
      const bool is_best = validates_first && validate_now();
      stop = stop || (validates_first && has_missed());
      const bool wait = asked || stop || agreed.cannot_read;
      const bool is_due = agreed.due || (is_best && !options.save.keep_best.empty()) ||
                          (done && every(options.save.interval_updates, progress.update));
      const bool saves_at_end = options.judges() && all_done();  // after the last validation
      if (wait || (is_due && !saves_at_end)) saver.save(wait);
      if (agreed.cannot_read) batches.refuse();
      if (asked && options.save.none) log.warn("a save was requested, but --no-save forbids all saves");
      const std::string problem = asked ? watch.honoured_save() : "";
      if (!problem.empty()) log.warn(problem);
      saves_honoured = agreed.asked.save;
      if (validates && !options.judges()) {
        validate_now();
        stop = has_missed();
        if (stop) saver.save(true);
      }
      if (stop) honour_stop();
      if (stop && !all_done()) return stop_now(agreed);
      if (done && every(options.sample_interval_updates, progress.update)) sampler.run();
    }
    if (options.judges() && !is_validated(progress)) validate(loop, data->valid.get(), saver);
    saver.save(true);
    if (!is_validated(progress)) validate(loop, data->valid.get(), saver);
    if (const auto& valid = progress.validations; stopped_early(options, progress))
      log.say(format("stopped early: {} had no smaller loss than {:.4f}, that of update {}",
                     plural(valid->since_best, "validation"), valid->best_loss, valid->best_update));
    reporter.finish(options.save.none
                        ? "done; nothing is saved (--no-save)"
                        : "done; next: fsdp-evaluate, fsdp-inspect or fsdp-consolidate " + step_to_use(options, progress));
    world.barrier();
    return exit_code::done;
  });
}

}  // namespace fsdp
