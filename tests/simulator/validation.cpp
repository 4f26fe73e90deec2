#include "simulator/validation.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/format.hpp"
#include "device/traits.hpp"
#include "plan/kind.hpp"

namespace fsdp::simulator {

namespace {

TransformerConfig config_of(const Row& row) {
  TransformerConfig config = arch_config(row.gated ? "llama-2-7b" : "gpt2");
  config.vocab_size = row.vocab;
  config.max_positions = row.tokens;
  config.width = row.width;
  config.layers = row.layers;
  config.heads = row.heads;
  config.kv_heads = row.kv_heads;
  config.head_size = row.head_size;
  config.ffn_width = row.ffn_width;
  config.tied_embeddings = row.tied;
  if (row.lora_rank > 0) config = with_lora(config, {.rank = row.lora_rank, .targets = {"all-linear"}});
  return config;
}

ShardingOptions sharding_of(const Row& row) {
  ShardingOptions options;
  options.strategy = row.strategy;
  options.batch = {row.micro_batch, row.tokens};
  options.types = {.parameter = DType::bf16, .reduce = row.reduce_bytes == 2 ? DType::bf16 : DType::f32};
  if (row.strategy == "hybrid") options.shard_group_size = row.per_node;
  options.plan.micro_batches = row.accumulation;
  options.plan.checkpoint_activations = row.recompute == "block";
  if (row.bf16_state) {
    options.types.master = options.types.gradient = DType::bf16;
    options.optimizer.state_type = DType::bf16;
  }
  return options;
}

/// Our rows with states in bf16 were measured before the optimizer updated such states in one pass. Its kernels, and those
/// that rounded gradients, then moved 56 bytes per parameter; all else is as in today's plan.
Cost costs_before_one_pass(const Operation& op, const Costing& costing) {
  if (op.kind == &kinds::optimizer_16_bit)
    return {.memory_bytes = 56 * static_cast<double>(costing.layout.shard_numel(static_cast<std::size_t>(op.unit)))};
  return cost_by_kind(op, costing);
}

/// Solves A x = b. Gaussian elimination with the largest pivots.
std::vector<double> solve(std::vector<std::vector<double>> A, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t largest = i;
    for (std::size_t r = i + 1; r < n; ++r)
      if (std::abs(A[r][i]) > std::abs(A[largest][i])) largest = r;
    std::swap(A[i], A[largest]), std::swap(b[i], b[largest]);
    for (std::size_t r = i + 1; r < n; ++r) {
      const double factor = A[r][i] / A[i][i];
      for (std::size_t c = i; c < n; ++c) A[r][c] -= factor * A[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t c = i + 1; c < n; ++c) b[i] -= A[i][c] * b[c];
    b[i] /= A[i][i];
  }
  return b;
}

}  // namespace

MeasuredUpdate::MeasuredUpdate(const Row& row, const std::optional<Kernels>& kernels)
    : row_(row),
      kernels_(kernels || row.program == "ours" ? kernels : kernels_of(row)),
      model_(std::make_unique<Transformer>(config_of(row), cuda_traits())),
      simulation_(*model_, sharding_of(row), mesh_shape(find_placement(row.strategy), row.gpus, row.per_node),
                  {.nodes = row.nodes(), .ranks_per_node = row.per_node, .sum_order = SumOrder::library},
                  kernels_         ? costs_of_peer(row, *kernels_)
                  : row.bf16_state ? costs_before_one_pass
                                   : UpdateSimulation::CostOf()) {}

StepPrediction MeasuredUpdate::step(const Constants& constants, const Change& change) const {
  Rates rates =
      kernels_ ? rates_of_peer(row_, *model_, *kernels_, constants) : rates_of(gpu_of(row_), *model_, DType::bf16, {});
  if (change) change(row_, rates, constants);
  return simulation_.predict(rates);
}

double MeasuredUpdate::predicted(const Constants& constants, const Change& change) const {
  return simulation_.tokens_per_second(step(constants, change)) / row_.gpus;
}

Constants fit(std::span<const Row* const> rows, Constants start, const std::vector<Constant>& indices, const Change& change,
              const KernelChange& other_kernels) {
  std::vector<std::unique_ptr<MeasuredUpdate>> updates;
  for (const Row* const row : rows) {
    Kernels kernels = kernels_of(*row);
    if (other_kernels) other_kernels(kernels);
    updates.push_back(std::make_unique<MeasuredUpdate>(*row, kernels));
  }
  const auto residuals = [&](const Constants& constants) {
    std::vector<double> out;
    for (std::size_t i = 0; i < rows.size(); ++i)
      out.push_back(std::log(updates[i]->predicted(constants, change) / rows[i]->measured));
    return out;
  };
  // Gauss-Newton, with relative changes of the constants as unknowns. A small weight keeps a constant that no row depends on.
  constexpr int most_steps = 50;
  constexpr double difference = 0.01, weight = 1e-6, largest = 0.25, converged = 1e-7;
  Constants constants = start;
  for (int step = 0; step < most_steps; ++step) {
    const std::vector<double> error = residuals(constants);
    std::vector<std::vector<double>> slopes;  // of each constant
    for (const Constant index : indices) {
      Constants changed = constants;
      changed[index] *= 1 + difference;
      slopes.push_back(residuals(changed));
      for (std::size_t i = 0; i < error.size(); ++i) slopes.back()[i] = (slopes.back()[i] - error[i]) / difference;
    }
    const auto product = [&](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0;
      for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
      return sum;
    };
    std::vector<std::vector<double>> A(indices.size(), std::vector<double>(indices.size()));
    std::vector<double> b;
    for (std::size_t r = 0; r < indices.size(); ++r) {
      for (std::size_t c = 0; c < indices.size(); ++c) A[r][c] = product(slopes[r], slopes[c]) + (r == c ? weight : 0);
      b.push_back(-product(slopes[r], error));
    }
    double most = 0;
    const std::vector<double> changes = solve(std::move(A), std::move(b));
    for (std::size_t i = 0; i < indices.size(); ++i) {
      constants[indices[i]] *= 1 + std::clamp(changes[i], -largest, largest);
      most = std::max(most, std::abs(changes[i]));
    }
    if (most < converged) break;
  }
  return constants;
}

std::vector<const Row*> rows_to_fit(const std::vector<Row>& rows) {
  std::vector<const Row*> ten;
  for (const Row& row : rows)
    if (row.role == "fit") ten.push_back(&row);
  return ten;
}

std::vector<Constant> all_constants() {
  std::vector<Constant> all;
  for (std::size_t i = 0; i < constant_count; ++i) all.push_back(static_cast<Constant>(i));
  return all;
}

Errors errors_of(std::span<const Prediction> predictions, const std::function<bool(const Row&)>& belongs) {
  Errors errors;
  for (const Prediction& prediction : predictions) {
    if (!belongs(*prediction.row)) continue;
    const double error = 100 * prediction.error();
    ++errors.count;
    errors.mean += std::abs(error), errors.bias += error, errors.above_20 += std::abs(error) > 20;
    if (std::abs(error) > std::abs(errors.worst)) errors.worst = error;
  }
  const auto n = static_cast<double>(std::max<std::size_t>(1, errors.count));
  errors.mean /= n, errors.bias /= n;
  return errors;
}

const std::array<RowSet, 4> row_sets = {
    {{"llm-foundry", [](const Row& row) { return row.is_mosaic() && row.role != "excluded"; }},
     {"other programs and ours",
      [](const Row& row) {
        return !row.is_mosaic() && row.program != "vtrain" && row.program != "deepspeed" && row.role == "predict";
      }},
     {"vTrain: Megatron, data parallel", [](const Row& row) { return row.program == "vtrain"; }},
     {"holdout", [](const Row& row) { return row.role == "holdout"; }}}};

std::vector<Prediction> predict_all(const std::vector<Row>& rows, const Constants& constants, const Change& change,
                                    const KernelChange& other_kernels) {
  std::vector<Prediction> predictions;
  for (const Row& row : rows) {
    if (row.role == "excluded") continue;
    std::optional<Kernels> kernels;
    if (other_kernels && row.program != "ours") other_kernels(kernels.emplace(kernels_of(row)));
    predictions.push_back({&row, MeasuredUpdate(row, kernels).predicted(constants, change)});
  }
  return predictions;
}

}  // namespace fsdp::simulator
