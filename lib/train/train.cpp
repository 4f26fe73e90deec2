#include "train/train.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "train/flight.hpp"
#include "train/job_end.hpp"
#include "train/machine.hpp"
#include "train/run.hpp"
#include "train/signals.hpp"

namespace fsdp {

namespace {

bool every(std::size_t interval, std::uint64_t update) { return interval > 0 && update % interval == 0; }

/// Every rank parses its own command line: they must say the same before anything depends on it. Collective.
void require_same_options(const TrainOptions& options, Group& world) {
  const std::string told = json_text(to_json(options));
  require_same(world, told, [&](const std::string& first) {
    const nlohmann::json mine = parse_json(told), theirs = parse_json(first);
    for (const auto& [key, value] : mine.items())
      if (!theirs.contains(key) || theirs[key] != value)
        throw UserError(format(
            "--{} is {} here and {} on rank 0 (all ranks must be told the same); start all of them with the same options", key,
            json_excerpt(value), theirs.contains(key) ? json_excerpt(theirs[key]) : "unknown"));
  });
}

/// What is told to the person who stopped the run, and to a job that is requeued.
std::string how_to_continue(const TrainOptions& options) {
  std::vector<std::string> once;
  if (options.restore != "latest") once.push_back("--restore");
  if (options.reset_optimizer) once.push_back("--reset-optimizer");
  if (options.reset_dataloader) once.push_back("--reset-dataloader");
  std::string text = "the same command continues";
  if (!once.empty()) text = format("the same command without {} continues", fmt::join(once, " and "));
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) text += " (mpirun reports exit code 75 as an abort; all is saved)";
  return text;
}

void say_nothing_to_do(Setup& setup) {
  const std::string next = setup.train_batches ? "nothing to do: all passes over the data are done; raise --max-epoch to go on"
                                               : "nothing to do: all updates are done; raise --max-update to go on";
  setup.metrics->end({.step = setup.progress.update, .tokens = setup.progress.tokens, .next = next});
}

/// What a rank tells the others after an update.
struct Told {
  std::int64_t stop, save;    // requests
  std::int64_t is_due;        // a save, by the clock of rank 0
  std::int64_t save_stage;    // of the save under way
  std::int64_t cannot_read;   // its part of the next update
  std::int64_t computing_ns;  // of the update; 0: unknown
  std::int64_t data_wait_ns;  // for its part of the next update
};

struct Agreed {
  Requests asked;
  bool due = false;          // a save
  bool saved = false;        // the save under way is complete, or cannot become so without finish()
  bool cannot_read = false;  // some rank cannot read its part of the next update
  bool ends = false;         // on rank 0: the end of the job is near
  bool wanted = false;       // on rank 0: a later start of the job waits for the save folder
};

/// What all ranks tell each other after an update, in one sum, in memory that is taken once.
class Agreement {
 public:
  explicit Agreement(Group& world)
      : world_(world), words_(fields * static_cast<std::size_t>(world.size())), computing_ns_(words_.size() / fields) {}

  /// The most that any rank has been asked, and how long each has computed. The end of the job is known to rank 0. Collective.
  Agreed after_update(SignalWatch& watch, std::optional<JobEnd>& job_end, std::optional<SaveLock>& lock, const Run& run) {
    const FlightNote note(run.flight(), "agree on requests to stop or save", run.update(), FlightNote::Kind::exchange);
    const Requests mine = watch.poll();
    Agreed agreed;
    agreed.ends = job_end && job_end->is_near();
    agreed.wanted = lock && lock->is_wanted();
    const Told told = {.stop = narrow<std::int64_t>(mine.stop) + agreed.ends + agreed.wanted,
                       .save = narrow<std::int64_t>(mine.save),
                       .is_due = world_.rank() == 0 && run.saver().is_due(),
                       .save_stage = static_cast<std::int64_t>(run.saver().stage()),
                       .cannot_read = !run.can_read(),
                       .computing_ns = run.computing_ns(),
                       .data_wait_ns = run.data_wait_ns()};
    std::fill(words_.begin(), words_.end(), 0);
    std::memcpy(words_of(world_.rank()), &told, sizeof told);
    world_.sum(words_);
    data_wait_ns_ = 0;
    bool working = false, stuck = false;
    for (int rank = 0; rank < world_.size(); ++rank) {
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
    }
    agreed.saved = run.saver().saving() && (stuck || !working);
    return agreed;
  }
  /// Of each rank in the last update; 0: unknown.
  const std::vector<std::int64_t>& computing_ns() const { return computing_ns_; }
  /// How long the rank that waited longest has waited for its next batch.
  std::int64_t data_wait_ns() const { return data_wait_ns_; }

 private:
  static constexpr std::size_t fields = sizeof(Told) / sizeof(std::int64_t);
  std::int64_t* words_of(int rank) { return words_.data() + fields * static_cast<std::size_t>(rank); }

  Group& world_;
  std::vector<std::int64_t> words_, computing_ns_;
  std::int64_t data_wait_ns_ = 0;
};

/// On rank 0, where the run is to stop before the end of its job: that end. Collective.
std::optional<JobEnd> find_job_end(const TrainOptions& options, Setup& setup, Group& world) {
  std::optional<JobEnd> end;
  agree(world, [&] {
    if (options.stop_before_s > 0 && world.rank() == 0) end.emplace(options.stop_before_s);
  });
  if (end && !end->seconds_left()) setup.warn("--stop-before does nothing (this job has no end)");
  return end;
}

/// Stopping takes an update and a save. Says so once they have taken longer than the run leaves itself; returns whether it has.
bool warn_of_short_lead(const TrainOptions& options, Run& run) {
  const Outlook outlook = run.outlook();
  const double needed_s = outlook.update_s + outlook.save_s;
  if (options.stop_before_s == 0 || outlook.save_s < 0 || needed_s <= options.stop_before_s) return false;
  run.warn(format("--stop-before {} may be too short (the last update and the last save took {} together); give it more",
                  format_duration(options.stop_before_s), format_duration(needed_s)));
  return true;
}

/// Updates until the last one, or until the run is asked to stop. Collective.
int run_updates(Setup& setup, SignalWatch& watch, FlightLanes& flight) {
  const TrainOptions& options = setup.options;
  Communicator& world = setup.world;
  std::optional<JobEnd> job_end = find_job_end(options, setup, world);
  Run run(setup, flight);
  if (const std::string text = watch.left_over(); !text.empty()) run.warn(text);
  Agreement agreement(world);
  bool lead_is_short = false;

  watch.expect(run.outlook());
  std::size_t saves_honoured = 0;
  while (!run.done()) {
    run.begin_update();
    run.forward_backward();  // of every micro-batch, with the gathers and reductions that they need
    run.gradient_norm();
    const bool done = run.update_parameters();  // else it was left out
    run.await_batch();                          // of the next update

    const auto [requests, due, saved, cannot_read, ends, wanted] = agreement.after_update(watch, job_end, setup.save_lock, run);
    if (done) run.report(agreement.computing_ns(), agreement.data_wait_ns());
    watch.expect(run.outlook());  // what comes now is honoured after the next update
    if (saved) run.saver().finish();
    lead_is_short = lead_is_short || warn_of_short_lead(options, run);
    const bool asked = requests.save > saves_honoured, stop = requests.stop > 0;
    const bool wait = asked || stop || cannot_read;
    if (due || (done && every(options.save.interval_updates, run.update())) || wait) run.save(wait);
    if (cannot_read) run.refuse_data();
    std::string problem;
    if (asked && options.save.none) run.warn("a save is asked for, and --no-save lets nothing be saved");
    if (asked) problem = watch.honoured_save();
    saves_honoured = requests.save;
    if (stop) problem = watch.honoured_stop();
    if (!problem.empty()) run.warn(problem);
    if (stop && !run.done()) {
      run.say_stopping(ends     ? job_end->reason()
                       : wanted ? "a later start of this job waits for " + options.save.folder.string()
                                : watch.stop_reason());
      run.finish("stopped on request; " + (options.save.none
                                               ? "nothing is saved (--no-save), so that the same command begins anew"
                                               : how_to_continue(options)));
      world.barrier();
      return options.save.none ? exit_code::failed : exit_code::stopped;
    }
    if (done && every(options.validate_interval_updates, run.update()) && !run.done())
      run.validate([&] { return watch.poll().stop > 0 || (job_end && job_end->is_near()); });
    if (done && every(options.sample_interval_updates, run.update())) run.sample();
  }
  run.save(true);
  run.validate();
  run.finish(options.save.none ? "done; nothing is saved (--no-save)"
                               : "done; next: fsdp-evaluate, fsdp-inspect or fsdp-consolidate " + options.save.folder.string());
  world.barrier();
  return exit_code::done;
}

}  // namespace

int train(const TrainOptions& options, Communicator& world) {
  require_same_options(options, world);
  SignalWatch watch(options.save.folder, world.rank() == 0);
  Setup setup(options, world, &watch);
  if (options.dry_run) return setup.print_plan(), exit_code::done;
  if (setup.done()) return say_nothing_to_do(setup), exit_code::done;
  return with_flight_record(setup, [&](FlightLanes& flight) { return run_updates(setup, watch, flight); });
}

}  // namespace fsdp
