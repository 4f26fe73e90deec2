#include "train/train.hpp"

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/program.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "train/machine.hpp"
#include "train/run.hpp"
#include "train/signals.hpp"

namespace fsdp {

namespace {

bool every(std::size_t interval, std::uint64_t update) { return interval > 0 && update % interval == 0; }

/// Every rank parses its own command line: they must say the same before anything depends on it. Collective.
void require_same_options(const TrainOptions& options, Group& world) {
  std::string first = json_text(to_json(options));  // rank 0's, after the broadcast
  const nlohmann::json mine = parse_json(first);
  std::uint64_t length = first.size();
  world.broadcast(&length, sizeof length, 0);
  first.resize(length);
  world.broadcast(first.data(), length, 0);
  agree(world, [&] {
    const nlohmann::json theirs = parse_json(first);
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
  return once.empty() ? "the same command continues"
                      : format("the same command without {} continues", fmt::join(once, " and "));
}

void say_nothing_to_do(Setup& setup) {
  const std::string next = setup.train_batches ? "nothing to do: all passes over the data are done; raise --max-epoch to go on"
                                               : "nothing to do: all updates are done; raise --max-update to go on";
  setup.metrics->end({.step = setup.progress.update, .tokens = setup.progress.tokens, .next = next});
}

struct AgreedRequests {
  Requests asked;
  bool due;      // by the clock of rank 0
  bool writing;  // some rank still writes its part of a save
  bool blind;    // some rank cannot read its part of the next update
};

/// The most that any rank has been asked. Collective.
AgreedRequests agreed_requests(SignalWatch& watch, const Run& run, Group& world) {
  const Requests mine = watch.poll();
  std::size_t counts[5] = {mine.stop, mine.save, world.rank() == 0 && run.saver().is_due(), !run.saver().wrote_its_part(),
                           !run.can_read()};
  world.max(counts);
  return {{counts[0], counts[1]}, counts[2] > 0, counts[3] > 0, counts[4] > 0};
}

}  // namespace

int train(const TrainOptions& options, Communicator& world) {
  require_same_options(options, world);
  SignalWatch watch(options.save.folder, world.rank() == 0);
  Setup setup(options, world);
  if (options.dry_run) return setup.print_plan(), exit_code::done;
  if (setup.done()) return say_nothing_to_do(setup), exit_code::done;
  Run run(setup);
  if (const std::string text = watch.left_over(); !text.empty()) run.warn(text);

  std::size_t saves_honoured = 0;
  while (!run.done()) {
    run.begin_update();
    run.forward_backward();  // of every micro-batch, with the gathers and reductions that they need
    run.gradient_norm();
    const bool done = run.update_parameters();  // else it overflowed: nothing is new but the loss scale
    run.read_ahead();                           // the next update's batch

    const auto [requests, due, writing, blind] = agreed_requests(watch, run, world);
    if (run.saver().saving() && !writing) run.saver().finish();
    const bool asked = requests.save > saves_honoured, stop = requests.stop > 0;
    const bool wait = asked || stop || blind;
    if (due || (done && every(options.save.interval_updates, run.update())) || wait) run.save(wait);
    if (blind) run.refuse_data();
    std::string problem;
    if (asked) problem = watch.honoured_save();
    saves_honoured = requests.save;
    if (stop) problem = watch.honoured_stop();
    if (!problem.empty()) run.warn(problem);
    if (stop && !run.done()) {
      run.say_stopping(watch.stop_reason());
      run.finish("stopped on request; " + how_to_continue(options));
      world.barrier();
      return exit_code::stopped;
    }
    if (done && every(options.validate_interval_updates, run.update()) && !run.done()) run.validate();
  }
  run.save(true);
  run.validate();
  run.finish("done; fsdp-evaluate, fsdp-inspect and fsdp-consolidate read " + options.save.folder.string());
  world.barrier();
  return exit_code::done;
}

}  // namespace fsdp
