#include "fsdp-plan/prediction.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

namespace {

double real(std::size_t n) { return static_cast<double>(n); }

/// What an operation computes and moves.
struct Work {
  double product_flops = 0, attention_flops = 0, memory_bytes = 0;
  Work& operator+=(const Work& other) {
    product_flops += other.product_flops, attention_flops += other.attention_flops, memory_bytes += other.memory_bytes;
    return *this;
  }
};

/// The work of a model's stages on one micro-batch. Products read and write far less than they compute; all other kernels are
/// counted by the numbers that they read and write, one by one as nn/block.cpp calls them.
class StageWork {
 public:
  StageWork(const Transformer& model, const Layout& layout, BatchShape shape, DType type)
      : c_(model.config()), R_(real(shape.rows())), T_(real(shape.T)), size_(real(size_of(type))) {
    std::vector<bool> trained(model.parameters().size());
    for (const Unit& unit : layout.units())
      for (const std::size_t p : unit.parameters) trained[p] = unit.trainable;
    for (const auto& stage : model.parameters_by_stage()) {
      matrices_.push_back(0), trained_matrices_.push_back(0);
      for (const std::size_t p : stage) {
        const Shape& shape_of = model.parameters()[p].shape;
        if (shape_of.size() != 2) continue;
        matrices_.back() += real(numel(shape_of));
        if (trained[p]) trained_matrices_.back() += real(numel(shape_of));
      }
    }
  }

  Work forward(std::size_t block) const {
    const double C = real(c_.width);
    const double norms = 2 * 2 * C, residuals = 2 * 3 * C;
    return {2 * R_ * matrices_[1 + block], 2 * attention(), numbers(norms + residuals + activation() + heads() + biases())};
  }
  /// Without the block's last product and residual.
  Work recompute(std::size_t block) const {
    const double C = real(c_.width);
    Work work = forward(block);
    work.product_flops -= 2 * R_ * real(c_.ffn_width) * C;
    work.memory_bytes -= numbers(3 * C);
    return work;
  }
  Work refill() const { return {0, 0, numbers(2 * 2 * real(c_.width) + activation())}; }
  /// Attention makes its probabilities again: 5 products where forward has 2.
  Work backward(std::size_t block) const {
    const double C = real(c_.width), F = real(c_.ffn_width);
    const double norms = 2 * 4 * C, activations = (c_.activation == Activation::swiglu ? 5 : 3) * F;
    return {2 * R_ * (matrices_[1 + block] + trained_matrices_[1 + block]), 5 * attention(),
            numbers(norms + activations + heads() + biases())};
  }
  Work embedding_forward() const { return {0, 0, numbers(real(c_.positions == Positions::learned ? 3 : 2) * real(c_.width))}; }
  Work embedding_backward() const { return {0, 0, numbers(real(c_.width)) + 2 * R_ * real(c_.width) * sizeof(float)}; }
  /// Logits are written, read for the loss, replaced by their gradient, and read by its two products.
  Work head() const {
    const double table = real(c_.vocab_size) * real(c_.width);
    const double wanted = trained_matrices_.back() > 0 ? 3 : 2;
    return {2 * wanted * R_ * table, 0, numbers(6 * real(c_.width) + 3 * real(c_.vocab_size))};
  }

 private:
  double numbers(double per_row) const { return R_ * per_row * size_; }
  /// FLOPs of one of attention's products over the half of each square that is not masked.
  double attention() const { return R_ * T_ * real(c_.heads * c_.head_size); }
  double activation() const { return 3 * real(c_.ffn_width); }
  /// Norms and rotations of queries and keys.
  double heads() const {
    return (c_.positions == Positions::rotary ? 2 : 0) * real((c_.heads + c_.kv_heads) * c_.head_size) +
           (c_.qk_norm ? 3 : 0) * real((c_.heads + c_.kv_heads) * c_.head_size);
  }
  /// Added in forward, summed up in backward; those of residuals and GELU are part of other kernels.
  double biases() const { return c_.qkv_bias ? 2 * real((c_.heads + 2 * c_.kv_heads) * c_.head_size) : 0; }

  const TransformerConfig& c_;
  const double R_, T_, size_;
  std::vector<double> matrices_, trained_matrices_;  // elements, of each stage
};

/// Bytes that an optimizer's update of this rank's part of a unit goes over: sums over whole tensors, and the copy that is
/// gathered where that is of another type than the master, included.
double optimizer_bytes(const Layout& layout, std::size_t unit, const OptimizerOptions& options) {
  const UnitTypes& types = layout.units()[unit].types;
  const Rule& rule = *layout.units()[unit].rule;
  std::size_t states = 0;
  for (const StateInfo& state : rule.states) states += state.extent == Extent::element;
  const double per_number = real(static_cast<std::size_t>(rule.passes.numbers)) * sizeof(float) +
                            real(static_cast<std::size_t>(rule.passes.per_state) * states * size_of(options.state_type));
  return real(layout.shard_numel(unit)) * (per_number + (types.parameter == types.master ? 0 : real(size_of(types.parameter))));
}

/// Seconds of a collective for the rank and the node that send most. Rings go through all links at once.
double transfer_seconds(const CollectiveUse& use, MeshShape mesh, const Cluster& cluster, const GpuFigures& gpu,
                        const Efficiency& efficiency) {
  const ClusterTraffic traffic = traffic_of_cluster({use}, mesh, cluster);
  const double of_rank = static_cast<double>(traffic.rank.total()) / gpu.link_bandwidth;
  const double of_node = traffic.ring_out_of_node == 0
                             ? 0
                             : static_cast<double>(traffic.ring_out_of_node) / (gpu.network_bandwidth * cluster.ranks_per_node);
  return std::max(of_rank, of_node) / efficiency.transfers;
}

/// An update of so many micro-batches as the plan has.
StepPrediction simulate(const Transformer& model, const ShardedPlan& planned, const ShardingOptions& options, MeshShape mesh,
                        const Cluster& cluster, const GpuFigures& gpu, const Efficiency& efficiency) {
  using enum OperationKind;
  const DType type = options.types.parameter;
  const Layout& layout = planned.layout;
  const StageWork stages(model, layout, options.batch, type);
  const double product_rate = gpu.flops(type) * efficiency.products, attention_rate = gpu.flops(type) * efficiency.attention,
               bandwidth = gpu.memory_bandwidth * efficiency.memory;
  StepPrediction step;
  /// Seconds of what is no collective.
  const auto compute = [&](const Operation& op) {
    const auto unit = static_cast<std::size_t>(op.unit), block = static_cast<std::size_t>(op.block);
    const auto stage = [&](const Work& work) {
      const double products = work.product_flops / product_rate, attention = work.attention_flops / attention_rate,
                   memory = work.memory_bytes / bandwidth;
      step.products += products, step.attention += attention, step.memory_bound += memory;
      return products + attention + memory;
    };
    const auto optimizer = [&](double seconds) {
      step.optimizer += seconds;
      return seconds;
    };
    switch (op.kind) {
      case embedding_forward:
        return stage(stages.embedding_forward());
      case block_forward:
        return stage(stages.forward(block));
      case recompute:
        return stage(op.writes.size() > 2 ? stages.forward(block) : stages.recompute(block));
      case refill:
        return stage(stages.refill());
      case block_backward:
        return stage(stages.backward(block));
      case embedding_backward:
        return stage(stages.embedding_backward());
      case head:
        return stage(stages.head());
      case clear:
        return stage({0, 0, real(op.count * size_of(op.type))});
      case sum_gradients:
        return stage({0, 0, (op.accumulate ? 3 : 2) * real(op.count * sizeof(float))});
      case clip_values:
        return optimizer(2 * real(op.count * sizeof(float)) / bandwidth);
      case add_squares:
        return optimizer(real(op.count * sizeof(float)) / bandwidth);
      case widen:
        return optimizer(real(op.count * (size_of(op.type) + sizeof(float))) / bandwidth);
      case round_at_random:  // both are read and written, and what was kept is widened again
        return optimizer(3 * real(op.count * (size_of(op.type) + sizeof(float))) / bandwidth);
      case OperationKind::optimizer:
        return optimizer(optimizer_bytes(layout, unit, options.optimizer) / bandwidth);
      case whole_matrices: {
        double flops = 0;
        for (const std::size_t p : layout.units()[unit].parameters) {
          const Shape& shape = model.parameters()[p].shape;
          if (shape.size() == 2) flops += layout.units()[unit].rule->whole.cost(shape[0], shape[1]);
        }
        return optimizer(flops / layout.shards() / (gpu.flops_fp32 * efficiency.products));
      }
      case load:
      case unload: {
        const double seconds = real(op.count * size_of(op.type)) / (gpu.host_bandwidth * efficiency.transfers);
        step.offload += seconds;
        return seconds;
      }
      default:
        return 0.0;
    }
  };

  std::map<std::tuple<Collective, GroupAxis, std::size_t, std::size_t>, double> transfers;  // equal ones take the same time
  const auto transfer = [&](const CollectiveUse& use) {
    const auto [found, is_new] = transfers.try_emplace({use.kind, use.axis, use.count, use.element_bytes}, 0.0);
    if (is_new) found->second = transfer_seconds(use, mesh, cluster, gpu, efficiency);
    return found->second;
  };
  std::array<double, stream_count> free_at{};
  double links_free_at = 0, busy = 0;
  std::vector<double> ends;
  for (const Operation& op : planned.plan.update) {
    double& stream = free_at[static_cast<std::size_t>(op.stream)];
    double begin = stream;
    for (const int w : op.waits) begin = std::max(begin, ends[static_cast<std::size_t>(w)]);
    double seconds = 0;
    if (const auto use = collective_of(op)) {
      seconds = transfer(*use);
      begin = std::max(begin, links_free_at);  // streams share the links
      links_free_at = begin + seconds;
      step.communication += seconds;
    } else {
      seconds = compute(op);
      if (op.stream == StreamId::compute) busy += seconds;
    }
    ends.push_back(stream = begin + seconds);
  }
  step.total = *std::max_element(free_at.begin(), free_at.end());
  step.exposed = step.total - busy;
  return step;
}

}  // namespace

StepPrediction predict_update(const Transformer& model, const ShardingOptions& options, MeshShape mesh, const Cluster& cluster,
                              const GpuFigures& gpu, const Efficiency& efficiency) {
  expect(cluster.nodes == 1 || gpu.network_bandwidth > 0, "several nodes have a network");
  const auto of_micro_batches = [&](std::size_t n) {
    ShardingOptions fewer = options;
    fewer.plan.micro_batches = n;
    return simulate(model, plan_sharding(model, fewer, mesh), options, mesh, cluster, gpu, efficiency);
  };
  const std::size_t K = options.plan.micro_batches;
  if (K <= 2) return of_micro_batches(K);
  // All micro-batches but the last are alike.
  const StepPrediction one = of_micro_batches(1), two = of_micro_batches(2);
  const auto more = [&](double StepPrediction::*part) { return two.*part + real(K - 2) * (two.*part - one.*part); };
  return {more(&StepPrediction::total),        more(&StepPrediction::products),  more(&StepPrediction::attention),
          more(&StepPrediction::memory_bound), more(&StepPrediction::optimizer), more(&StepPrediction::communication),
          more(&StepPrediction::offload),      more(&StepPrediction::exposed)};
}

double tokens_per_second(const StepPrediction& step, const ShardingOptions& options, const Cluster& cluster) {
  return real(options.batch.rows() * options.plan.micro_batches) * cluster.ranks() / step.total;
}

double predicted_mfu(const StepPrediction& step, const Transformer& model, const ShardingOptions& options,
                     const GpuFigures& gpu) {
  const double tokens = real(options.batch.rows() * options.plan.micro_batches);
  return model.flops_per_token(options.batch.T) * tokens / step.total / gpu.flops(options.types.parameter);
}

nlohmann::json to_json(const GpuFigures& gpu, const Efficiency& efficiency) {
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
          {"reached",
           {{"products", efficiency.products},
            {"attention", efficiency.attention},
            {"memory", efficiency.memory},
            {"transfers", efficiency.transfers}}},
          {"measured", false}};
}

}  // namespace fsdp
