#include "train/reporter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/quantile.hpp"
#include "base/system.hpp"
#include "comm/agree.hpp"

namespace fsdp {

Reporter::Reporter(const LoopContext& loop, const Machine& machine, const MemoryAccount& memory, const BatchSource& batches,
                   TraceFile* trace)
    : loop_(loop),
      machine_(machine),
      memory_(memory),
      batches_(batches),
      trace_(trace),
      start_tokens_(loop.engine.progress().tokens),
      hosts_(loop.world.gather(host_name())),
      peak_flops_(machine.peak_flops),
      group_norms_(loop.options.log_group_norms
                       ? std::make_unique<GroupNorms>(loop.engine.model(),
                                                      groups_of_optimizer(loop.engine.model(), loop.options.sharding.optimizer))
                       : nullptr),
      recorder_(agree(loop.world,
                      [&] {
                        const TraceOptions& wanted = loop.options.trace;
                        return wanted.file.empty() ? nullptr
                                                   : std::make_unique<Recorder>(loop.engine.model().plan(), wanted.updates);
                      })),
      energy_(*machine.device, *machine.node) {
  if (recorder_) loop.engine.executor().observe(*recorder_);
}

void Reporter::before_update() {
  since_update_.restart();
  loop_.engine.executor().reset_times();
  if (recorder_) recorder_->record_next();
}

void Reporter::after_update(const UpdateScalars& scalars, const UpdateResult& result, Verdict verdict) {
  energy_.look();
  const double seconds = since_update_.seconds();
  updating_s_ += seconds;
  if (verdict == Verdict::left_out) {
    SkipMetrics skip{scalars.update, seconds * 1e3, loop_.engine.progress().data.sequences};
    if (result.is_spike)
      skip.spike = {result.loss, result.gradient_norm, scalars.most_loss, scalars.most_norm};
    else
      skip.overflow = {scalars.loss_scale, loop_.engine.progress().loss_scaler->scale};
    return loop_.log.skip(skip);
  }
  last_update_s_ = seconds;
  own_loss_ = batches_.work().targets > 0 ? result.own_loss_sum / static_cast<double>(batches_.work().targets)
                                          : -std::numeric_limits<double>::infinity();
  const bool is_f16 = loop_.options.sharding.types.parameter == DType::f16;
  const Executor& executor = loop_.engine.executor();
  std::span<const std::pair<std::string, double>> group_norms;
  if (group_norms_) group_norms = group_norms_->measure(scalars.loss_scale);
  last_ = {.step = loop_.engine.progress().update,
           .loss = result.loss,
           .learning_rate = scalars.learning_rate,
           .gradient_norm = result.gradient_norm,
           .tokens = loop_.engine.progress().tokens,
           .tokens_per_second = scalars.tokens / seconds,
           .ms = seconds * 1e3,
           .mfu = {},
           .loss_scale = is_f16 ? std::optional(scalars.loss_scale) : std::nullopt,
           .times = executor.knows_times() ? std::optional(executor.times()) : std::nullopt,
           .mem_peak_bytes = executor.peak_bytes(),
           .group_norms = group_norms,
           .accuracy = result.accuracy,
           .entropy = result.entropy};
  if (recorder_ && recorder_->full()) write_trace();
}

std::optional<double> Reporter::mfu(double flops_per_second) {
  if (!peak_flops_) return {};
  const double share = flops_per_second / *peak_flops_;
  if (share < 1.1 || !is_host(machine_.kind)) return share;
  if (machine_.node->rank() == 0) forget_peak_per_core();
  loop_.log.warn(
      "the MFU is left out: the stored rate of the cores is lower than the rate of this run, so other work was running when it "
      "was measured. The next start measures the cores again");
  peak_flops_.reset();
  return {};
}

std::int64_t Reporter::computing_ns() const {
  const Executor& executor = loop_.engine.executor();
  return executor.knows_times() ? std::llround(1e9 * (executor.times().total() - executor.times().exposed)) : 0;
}

/// Ranks with longer rows compute longer, so ranks are compared by their time for a FLOP.
std::optional<Straggler> Reporter::find_straggler(std::span<const RankWork> ranks) const {
  if (ranks.size() < 2) return {};
  std::vector<double> times;
  for (const RankWork& each : ranks) {
    if (each.computing_ns == 0 || each.flops == 0) return {};
    times.push_back(static_cast<double>(each.computing_ns) / each.flops);
  }
  const auto rank = static_cast<std::size_t>(std::max_element(times.begin(), times.end()) - times.begin());
  const double ms = 1e-6 * static_cast<double>(ranks[rank].computing_ns);
  return Straggler{narrow<int>(rank), hosts_[rank], ms, ms * quantile(times, 0.5) / times[rank]};
}

void Reporter::report(std::span<const RankWork> ranks, std::int64_t data_wait_ns, double largest_loss) {
  std::int64_t positions = 0, padding = 0;
  double flops = 0, most_flops = 0;
  for (const RankWork& each : ranks) {
    positions += each.positions, padding += each.padding;
    flops += each.flops, most_flops = std::max(most_flops, each.flops);
  }
  last_.positions_per_second = static_cast<double>(positions) / last_update_s_;
  last_.mfu = mfu(flops / last_update_s_);
  last_.padding = static_cast<double>(padding) / static_cast<double>(positions);
  if (ranks.size() > 1) last_.rank_balance = flops / static_cast<double>(ranks.size()) / most_flops;
  last_.largest_loss = largest_loss;
  last_.data_wait_ms = 1e-6 * static_cast<double>(data_wait_ns);
  if (loop_.world.rank() == 0 && loop_.engine.progress().update % loop_.options.log_interval == 0)
    last_.straggler = find_straggler(ranks);
  loop_.log.train(last_);
}

/// Writes the trace. If that fails, warns and lets training continue.
void Reporter::write_trace() {
  const std::string problem = fsdp::write_trace(*recorder_, loop_.engine.model(), loop_.world, trace_);
  if (!problem.empty())
    loop_.log.warn(problem);
  else if (recorder_->updates().empty())
    loop_.log.warn("the trace is empty (the first update of a run is not recorded, and there was no other)");
  else
    loop_.log.say(format("trace of {}: {}; open it at https://ui.perfetto.dev", plural(recorder_->updates().size(), "update"),
                         loop_.options.trace.file.string()));
  loop_.engine.executor().forget(*recorder_);
  recorder_.reset();
}

void Reporter::finish(const std::string& next) {
  if (recorder_) write_trace();  // the run ended before the requested updates were recorded
  const auto bytes = [](std::size_t n) { return format_bytes(static_cast<double>(n)); };
  Communicator& world = loop_.world;
  const Mesh& mesh = loop_.engine.model().mesh();
  // The process's memory as the system counts it includes memory of other ranks that collectives have read.
  std::size_t borrowed = 0;
  for (const auto& group : mesh.axes) borrowed += group->borrowed_bytes();
  const std::size_t measured = world.max(loop_.engine.executor().peak_bytes());
  const std::size_t process = world.max(process_peak_bytes() - machine_.start_bytes);
  const bool on_cpu = is_host(memory_.device);
  const std::size_t total = memory_.total();
  std::string expected = format("{} expected:\n                      the plan's buffers, and {} outside the plan",
                                bytes(total + borrowed), bytes(total - memory_.plan));
  if (borrowed > 0)
    expected += format(",\n                      and {} in other ranks' slots, which the system also counts for this process",
                       bytes(borrowed));
  if (process > total + borrowed)
    expected += format(",\n                      and {} more: code that was loaded when it first ran, and memory of libraries",
                       bytes(process - total - borrowed));
  loop_.log.say(
      format("peak memory per rank:\n"
             "  the plan's buffers  {} used, {} planned\n"
             "  the process         {} used since {}{}",
             bytes(measured), bytes(memory_.plan), bytes(process), machine_.measured_since,
             on_cpu ? ", " + expected : " of the host's memory"));
  if (loop_.engine.options().sharding.plan.places.on_disk()) {
    const DiskTraffic disk = loop_.engine.executor().disk_traffic();
    loop_.log.say(format("  the file for state  {} used, {} planned; all ranks have read {} and written {}",
                         bytes(world.max(loop_.engine.executor().file_bytes())), bytes(world.max(memory_.on_disk)),
                         bytes(narrow<std::size_t>(world.sum(narrow<std::int64_t>(disk.read)))),
                         bytes(narrow<std::size_t>(world.sum(narrow<std::int64_t>(disk.written))))));
  }
  const double seconds = updating_s_ + batches_.waited_s();
  const double rate = seconds > 0 ? static_cast<double>(loop_.engine.progress().tokens - start_tokens_) / seconds : 0;
  loop_.log.end({loop_.engine.progress().update, loop_.engine.progress().tokens, rate, measured, next,
                 loop_.engine.progress().tokens - start_tokens_, energy_.total(world)});
}

}  // namespace fsdp
