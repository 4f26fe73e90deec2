#include "plan/prediction.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/error.hpp"
#include "plan/kind.hpp"

namespace fsdp {

namespace {

double real(std::size_t n) { return static_cast<double>(n); }

constexpr StepPart all_parts[] = {{"total", &StepPrediction::total},
                                  {"products", &StepPrediction::products},
                                  {"attention", &StepPrediction::attention},
                                  {"memory_bound", &StepPrediction::memory_bound},
                                  {"recomputation", &StepPrediction::recomputation},
                                  {"recomputed_products", &StepPrediction::recomputed_products},
                                  {"recomputed_attention", &StepPrediction::recomputed_attention},
                                  {"optimizer", &StepPrediction::optimizer},
                                  {"slowed", &StepPrediction::slowed},
                                  {"exposed", &StepPrediction::exposed},
                                  {"host", &StepPrediction::host},
                                  {"communication", &StepPrediction::communication},
                                  {"offload", &StepPrediction::offload},
                                  {"disk", &StepPrediction::disk}};

/// Ranks that are alike are one class. A slow rank forms its own class. If there are several shard groups, its whole group
/// joins the class, because its gathers wait for it.
enum RankClass : std::uint8_t { usual = 1, slow_ones = 2 };

}  // namespace

std::span<const StepPart> step_parts() { return all_parts; }

struct UpdateSimulation::Simulated {
  StepPrediction step;
  std::vector<Task> tasks;
  std::vector<TaskTime> times;
  std::vector<int> of_operation;          // the task of each operation, of the slow rank if there is one
  std::vector<CostTime> work;             // of each operation
  std::vector<std::vector<int>> waiting;  // what `tasks` wait for
};

UpdateSimulation::UpdateSimulation(const Transformer& model, const ShardingOptions& options, MeshShape mesh,
                                   const Cluster& cluster, const CostOf& cost)
    : model_(model), options_(options), mesh_(mesh), cluster_(cluster) {
  const std::size_t K = options.plan.micro_batches;
  for (std::size_t n = K <= 3 ? K : 2; n <= std::min<std::size_t>(K, 3); ++n) {
    ShardingOptions fewer = options;
    fewer.plan.micro_batches = n;
    Planned& planned = planned_.emplace_back(Planned{plan_sharding(model, fewer, mesh), {}, {}});
    const Layout& layout = planned.sharded.layout;
    const StageWork stages(model, layout.trained(), options.batch, options.types.parameter);
    const Costing costing{layout, stages, options.optimizer, planned.sharded.plan.blocks_in_pieces};
    for (const Operation& op : planned.sharded.plan.update) {
      planned.uses.push_back(collective_of(op));
      planned.costs.push_back(planned.uses.back() ? Cost() : cost ? cost(op, costing) : cost_by_kind(op, costing));
    }
  }
}

UpdateSimulation::Simulated UpdateSimulation::simulate(const Planned& planned, const Rates& rates, const DiskRates& disk,
                                                       SlowRank slow) const {
  expect(cluster_.nodes == 1 || rates.network.ports > 0, "several nodes have a network");
  expect(disk.known() || !options_.plan.places.on_disk(), "the rates of the disk are known");
  expect(slow.rank < cluster_.ranks(), "the slow rank is a rank of the cluster");
  const Plan& plan = planned.sharded.plan;
  Simulated out;
  StepPrediction& step = out.step;
  const double spread = 1 + rates.spread * slowest_of(cluster_.ranks());
  /// Returns the seconds of a load or unload. A file's bytes cross the disk and the link at the same time.
  const auto copy = [&](const Operation& op) {
    const auto stored = static_cast<std::size_t>(op.at(OperandName::stored).buffer);
    const bool is_on_disk = plan.buffers[stored].space->tier == Tier::disk;
    const double rate = (op.kind == &kinds::load ? disk.read : disk.write) / cluster_.ranks_per_node,
                 seconds = real(op.bytes()) / (is_on_disk ? std::min<double>(rate, rates.host_link) : rates.host_link);
    (is_on_disk ? step.disk : step.offload) += seconds;
    return seconds;
  };
  const auto computes = [&](const Operation& op) {
    return (op.stream == StreamId::compute || rates.queues == Queues::one) && op.kind->part != UpdatePart::transfer;
  };
  out.work.resize(plan.update.size());
  /// Returns the seconds of an operation that is not a collective, on a usual rank. Adds those of the slow rank, if there is
  /// one, to `step` if the compute stream runs the operation.
  const auto compute = [&](std::size_t i) {
    const Operation& op = plan.update[i];
    if (op.kind->part == UpdatePart::transfer) return copy(op);
    CostTime& time = out.work[i] = time_of(planned.costs[i], rates, is_of_optimizer(op) ? rates.optimizer : rates.memory);
    for (double CostTime::*part : {&CostTime::products, &CostTime::attention, &CostTime::memory, &CostTime::total})
      time.*part *= spread * slow.factor;
    if (computes(op)) {
      if (is_of_optimizer(op))
        step.optimizer += time.total;
      else if (op.kind->part == UpdatePart::again)
        step.recomputation += time.total, step.recomputed_products += time.products,
            step.recomputed_attention += time.attention;
      else
        step.products += time.products, step.attention += time.attention,
            step.memory_bound += time.total - time.products - time.attention;
    }
    return time.total / slow.factor;
  };

  std::map<CollectiveUse, CollectiveTime> transfers;  // equal collectives take the same time
  const auto transfer = [&](const CollectiveUse& use) {
    const auto [found, is_new] = transfers.try_emplace(use);
    if (is_new) found->second = time_of(use, mesh_, cluster_, rates);
    return found->second;
  };
  std::array<RingGroup, group_axes.size()> groups;
  for (const GroupAxis axis : group_axes) groups[static_cast<std::size_t>(axis)] = ring_group(axis, mesh_, cluster_);
  // Groups inside nodes and groups between nodes use different links.
  const bool separate = groups[static_cast<std::size_t>(GroupAxis::shard)].nodes == 1 && cluster_.nodes > 1;
  const auto link_of = [&](GroupAxis axis) { return separate && groups[static_cast<std::size_t>(axis)].nodes > 1 ? 1 : 0; };

  const auto queue_of = [&](const Operation& op) {
    if (rates.queues == Queues::one || op.stream == StreamId::compute) return 0;
    return rates.queues == Queues::thread ? 1 : static_cast<int>(op.stream);
  };
  const bool has_slow = slow.factor > 1;  // else the rank is like the others
  const bool one_shard_group = mesh_.replicate == 1 || mesh_.shard == 1;
  std::vector<int> usual_tasks, slow_tasks;  // by operation
  const auto add = [&](std::vector<int>& tasks_of, std::uint8_t classes, const Task& task, const Operation& op, int computing) {
    std::vector<int> waits;
    const auto wait_for = [&](const std::vector<int>& of) {
      for (const int w : op.waits) waits.push_back(of[static_cast<std::size_t>(w)]);
      if (rates.queues == Queues::thread && op.stream != StreamId::compute && computing >= 0)
        waits.push_back(of[static_cast<std::size_t>(computing)]);
    };
    if (classes & usual) wait_for(usual_tasks);
    if (classes & slow_ones) wait_for(slow_tasks);
    tasks_of.push_back(static_cast<int>(out.tasks.size()));
    out.tasks.push_back(task);
    out.tasks.back().classes = classes;
    out.waiting.push_back(std::move(waits));
  };
  int computing = -1;  // the last operation of the compute stream so far
  for (std::size_t i = 0; i < plan.update.size(); ++i) {
    const Operation& op = plan.update[i];
    Task task{.queue = queue_of(op)};
    bool together = false;  // both classes take part
    if (const auto& use = planned.uses[i]) {
      const RingGroup& group = groups[static_cast<std::size_t>(use->axis)];
      const CollectiveTime time = transfer(*use);
      task.length = time.seconds;
      task.link = group.ranks > 1 ? link_of(use->axis) : -1;
      task.slows = task.length > 0 && rates.queues != Queues::one ? time.slows : 0;
      step.communication += task.length;
      together = group.ranks > 1 && (one_shard_group || use->axis != GroupAxis::shard);
    } else {
      task.length = compute(i);
      task.is_slowed = op.stream == StreamId::compute;
    }
    if (together && has_slow) {
      add(usual_tasks, usual | slow_ones, task, op, computing);
      slow_tasks.push_back(usual_tasks.back());
    } else {
      add(usual_tasks, usual, task, op, computing);
      if (has_slow) {
        if (!planned.uses[i] && op.kind->part != UpdatePart::transfer) task.length *= slow.factor;
        add(slow_tasks, slow_ones, task, op, computing);
      }
    }
    if (op.stream == StreamId::compute) computing = static_cast<int>(i);
  }
  for (std::size_t i = 0; i < out.tasks.size(); ++i) out.tasks[i].waits = out.waiting[i];
  out.times = schedule(out.tasks);
  std::vector<int>& reported = has_slow ? slow_tasks : usual_tasks;
  double busy = 0;
  for (std::size_t i = 0; i < plan.update.size(); ++i) {
    if (planned.uses[i] || !computes(plan.update[i])) continue;
    const auto t = static_cast<std::size_t>(reported[i]);
    const double length = out.times[t].end - out.times[t].begin;
    busy += length, step.slowed += std::max(0.0, length - out.tasks[t].length);
  }
  for (const TaskTime& time : out.times) step.total = std::max(step.total, time.end);
  step.exposed = step.total - busy;
  out.of_operation = std::move(reported);
  return out;
}

StepPrediction UpdateSimulation::predict(const Rates& rates, const DiskRates& disk, SlowRank slow) const {
  StepPrediction step = simulate(planned_.front(), rates, disk, slow).step;
  if (planned_.size() > 1) {  // the first micro-batch differs, as does the last one; all others take the same time
    const StepPrediction three = simulate(planned_.back(), rates, disk, slow).step;
    const double more = real(options_.plan.micro_batches - 2);
    for (const auto& [name, part] : all_parts) step.*part += more * (three.*part - step.*part);
  }
  step.host = rates.update;
  step.total += step.host;
  return step;
}

std::vector<SimulatedOperation> UpdateSimulation::operations(const Rates& rates, const DiskRates& disk, SlowRank slow,
                                                             std::size_t micro_batches) const {
  const Planned& planned = micro_batches == 3 ? planned_.back() : planned_.front();
  const Simulated simulated = simulate(planned, rates, disk, slow);
  std::vector<char> is_critical(simulated.tasks.size());
  for (const int task : critical_path(simulated.times)) is_critical[static_cast<std::size_t>(task)] = true;
  std::vector<SimulatedOperation> out;
  for (std::size_t i = 0; i < planned.sharded.plan.update.size(); ++i) {
    const auto task = static_cast<std::size_t>(simulated.of_operation[i]);
    out.push_back({&planned.sharded.plan.update[i], simulated.times[task], is_critical[task] != 0, simulated.work[i]});
  }
  return out;
}

double UpdateSimulation::tokens_per_second(const StepPrediction& step) const {
  return real(options_.batch.rows() * options_.plan.micro_batches) * cluster_.ranks() / step.total;
}

double UpdateSimulation::mfu(const StepPrediction& step, const Rates& rates) const {
  const double tokens = real(options_.batch.rows() * options_.plan.micro_batches);
  return model_.flops_per_token(options_.batch.T) * tokens / step.total / rates.peak;
}

}  // namespace fsdp
