#include "train/train.hpp"

#include "base/program.hpp"
#include "train/run.hpp"
#include "train/signals.hpp"

namespace fsdp {

namespace {

bool every(std::size_t interval, std::uint64_t update) { return interval > 0 && update % interval == 0; }

/// What any rank has been asked since the last call. Collective.
Requests agreed_requests(SignalWatch& watch, Communicator& world, Stream& stream) {
  Requests mine = watch.poll();
  std::int64_t flags[2] = {mine.stop, mine.save};
  world.all_reduce(stream, flags, 2);
  return {flags[0], flags[1]};
}

}  // namespace

int train(const TrainOptions& options, Communicator& world) {
  SignalWatch watch(options.save_dir, world.rank() == 0);
  Run run(options, world);
  if (options.dry_run) return run.print_plan(), exit_code::done;
  run.announce();
  if (run.done()) return run.finish("nothing to do: all updates are done; raise --max-update to go on"), exit_code::done;
  run.prepare();

  const auto stream = make_cpu_device()->make_stream();
  while (!run.done()) {
    run.step();

    const Requests requests = agreed_requests(watch, world, *stream);
    if (every(options.save_interval_updates, run.update()) || requests.save > 0 || requests.stop > 0) run.save();
    if (requests.save > 0) watch.honoured_save();
    if (requests.stop > 0) watch.honoured_stop();
    if (requests.stop > 0 && !run.done()) {
      run.say_stopping(watch.stop_reason());
      run.finish("stopped on request; the same command continues");
      world.barrier();
      return exit_code::stopped;
    }
    if (every(options.validate_interval_updates, run.update()) && !run.done()) run.validate();
  }
  run.save();
  run.validate();
  run.finish("done; fsdp-evaluate, fsdp-generate and fsdp-consolidate read " + options.save_dir.string());
  world.barrier();
  return exit_code::done;
}

}  // namespace fsdp
