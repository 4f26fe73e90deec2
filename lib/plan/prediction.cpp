#include "plan/prediction.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "plan/kind.hpp"
#include "plan/schedule.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

double real(std::size_t n) { return static_cast<double>(n); }

/// Returns the seconds of a collective: the larger of the times for the rank and for the node that send the most. All network
/// links of a node are assumed to be in use.
double transfer_seconds(const CollectiveUse& use, MeshShape mesh, const Cluster& cluster, const GpuFigures& gpu,
                        const Efficiency& efficiency) {
  const ClusterTraffic traffic = traffic_of_cluster({use}, mesh, cluster);
  const double of_rank = static_cast<double>(traffic.rank.total()) / gpu.link_bandwidth;
  const bool by_rings = use.kind == Collective::all_gather || cluster.sum_order == SumOrder::library;
  const std::uint64_t sent = by_rings ? traffic.ring_out_of_node : traffic.out_of_node;
  const double of_node = sent == 0 ? 0 : static_cast<double>(sent) / (gpu.network_bandwidth * cluster.ranks_per_node);
  return std::max(of_rank, of_node) / efficiency.transfers;
}

/// Predicts an update with the number of micro-batches in `planned`.
StepPrediction simulate(const Transformer& model, const ShardedPlan& planned, const ShardingOptions& options, MeshShape mesh,
                        const Cluster& cluster, const GpuFigures& gpu, const DiskRates& disk, const Efficiency& efficiency) {
  const DType type = options.types.parameter;
  const Layout& layout = planned.layout;
  const StageWork stages(model, layout.trained(), options.batch, type);
  const Costing costing{layout, stages, options.optimizer, planned.plan.blocks_in_pieces};
  const double product_rate = gpu.flops(type) * efficiency.products,
               attention_forward_rate = gpu.flops(type) * efficiency.attention_forward,
               attention_backward_rate = gpu.flops(type) * efficiency.attention_backward,
               fp32_rate = gpu.flops_fp32 * efficiency.products, bandwidth = gpu.memory_bandwidth * efficiency.memory,
               link = gpu.host_bandwidth * efficiency.transfers;
  StepPrediction step;
  /// Returns the seconds of a load or unload. A file's bytes cross the disk and the link at the same time.
  const auto copy = [&](const Operation& op) {
    const auto stored = static_cast<std::size_t>(op.at(OperandName::stored).buffer);
    const bool is_on_disk = planned.plan.buffers[stored].space->tier == Tier::disk;
    const double rate = (op.kind == &kinds::load ? disk.read : disk.write) / cluster.ranks_per_node,
                 seconds = real(op.bytes()) / (is_on_disk ? std::min(rate, link) : link);
    (is_on_disk ? step.disk : step.offload) += seconds;
    return seconds;
  };
  /// Returns the seconds of an operation that is not a collective. Adds them to `step` if the compute stream runs it.
  const auto compute = [&](const Operation& op) {
    const Cost cost = op.kind->cost ? op.kind->cost(op, costing) : Cost();
    const double products = cost.product_flops / product_rate,
                 attention = cost.attention_forward_flops / attention_forward_rate +
                             cost.attention_backward_flops / attention_backward_rate,
                 memory = cost.memory_bytes / bandwidth, fp32 = cost.fp32_flops / fp32_rate,
                 transfer = op.kind->part == UpdatePart::transfer ? copy(op) : 0;
    const double seconds = products + attention + memory + fp32 + transfer;
    if (op.stream != StreamId::compute) return seconds;
    if (op.kind->part == UpdatePart::optimizer || op.kind->part == UpdatePart::rounding)
      step.optimizer += seconds;
    else
      step.products += products + fp32, step.attention += attention, step.memory_bound += memory;
    return seconds;
  };

  std::map<CollectiveUse, double> transfers;  // equal collectives take the same time
  const auto transfer = [&](const CollectiveUse& use) {
    const auto [found, is_new] = transfers.try_emplace(use, 0.0);
    if (is_new) found->second = transfer_seconds(use, mesh, cluster, gpu, efficiency);
    return found->second;
  };
  constexpr int links = stream_count;  // collectives of all streams share the links
  std::vector<Task> tasks;
  double busy = 0;
  for (const Operation& op : planned.plan.update) {
    Task task{.queue = static_cast<int>(op.stream), .waits = op.waits};
    if (const auto use = collective_of(op)) {
      task.also = links, task.length = transfer(*use);
      step.communication += task.length;
    } else {
      task.length = compute(op);
      if (op.stream == StreamId::compute) busy += task.length;
    }
    tasks.push_back(task);
  }
  for (const TaskTime& time : schedule(tasks)) step.total = std::max(step.total, time.end);
  step.exposed = step.total - busy;
  return step;
}

}  // namespace

StepPrediction predict_update(const Transformer& model, const ShardingOptions& options, MeshShape mesh, const Cluster& cluster,
                              const GpuFigures& gpu, const DiskRates& disk, const Efficiency& efficiency) {
  expect(cluster.nodes == 1 || gpu.network_bandwidth > 0, "several nodes have a network");
  expect(disk.known() || !options.plan.places.on_disk(), "the rates of the disk are known");
  const auto of_micro_batches = [&](std::size_t n) {
    ShardingOptions fewer = options;
    fewer.plan.micro_batches = n;
    return simulate(model, plan_sharding(model, fewer, mesh), options, mesh, cluster, gpu, disk, efficiency);
  };
  const std::size_t K = options.plan.micro_batches;
  if (K <= 2) return of_micro_batches(K);
  // All micro-batches but the last take the same time.
  const StepPrediction one = of_micro_batches(1), two = of_micro_batches(2);
  const auto more = [&](double StepPrediction::*part) { return two.*part + real(K - 2) * (two.*part - one.*part); };
  return {more(&StepPrediction::total),        more(&StepPrediction::products),  more(&StepPrediction::attention),
          more(&StepPrediction::memory_bound), more(&StepPrediction::optimizer), more(&StepPrediction::communication),
          more(&StepPrediction::offload),      more(&StepPrediction::disk),      more(&StepPrediction::exposed)};
}

double tokens_per_second(const StepPrediction& step, const ShardingOptions& options, const Cluster& cluster) {
  return real(options.batch.rows() * options.plan.micro_batches) * cluster.ranks() / step.total;
}

double predicted_mfu(const StepPrediction& step, const Transformer& model, const ShardingOptions& options,
                     const GpuFigures& gpu) {
  const double tokens = real(options.batch.rows() * options.plan.micro_batches);
  return model.flops_per_token(options.batch.T) * tokens / step.total / gpu.flops(options.types.parameter);
}

nlohmann::json to_json(const GpuFigures& gpu) {
  nlohmann::json reached;
  for (const AssumedEfficiency& assumed : assumed_efficiencies)
    reached[std::string(assumed.name)] = {{"fraction", assumed.fraction}, {"of", assumed.of}, {"source", assumed.source}};
  return {{"name", gpu.name},
          {"product", gpu.product},
          {"flops_16bit", gpu.flops_16bit},
          {"flops_fp32", gpu.flops_fp32},
          {"memory_bytes", gpu.memory_bytes},
          {"memory_bandwidth", gpu.memory_bandwidth},
          {"link_bandwidth", gpu.link_bandwidth},
          {"host_bandwidth", gpu.host_bandwidth},
          {"network_bandwidth", gpu.network_bandwidth == 0 ? nlohmann::json() : nlohmann::json(gpu.network_bandwidth)},
          {"source", gpu.source},
          {"reached", reached},
          {"measured", false}};
}

}  // namespace fsdp
