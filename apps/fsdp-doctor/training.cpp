#include "fsdp-doctor/training.hpp"

#include <algorithm>
#include <cmath>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "comm/topology.hpp"
#include "run/sharded_model.hpp"
#include "plan/traffic.hpp"
#include "kernels/threads.hpp"
#include "machine/measure.hpp"
#include "plan/prediction.hpp"

namespace fsdp {

namespace {

TransformerConfig model_of(std::size_t layers, std::size_t width) {
  TransformerConfig config = arch_config("gpt2");
  config.vocab_size = 256;
  config.max_positions = 64;
  config.layers = layers;
  config.heads = config.kv_heads = width / 32;
  config.head_size = 32;
  config.width = width;
  config.ffn_width = 4 * width;
  return config;
}

/// Predicts an update from the measured rates, as fsdp-plan does from a datasheet. Returns nothing for GPUs, and if rates are
/// unknown or nodes have different numbers of ranks.
std::optional<StepPrediction> predict(const DoctorJob& job, const TransformerConfig& config, const ShardingOptions& sharding) {
  const Rates& rates = job.rates;
  const int nodes = static_cast<int>(job.nodes.size()), ranks_of_node = ranks_of_each_node(job.node_of);
  if (!is_host(job.device->kind()) || rates.flops == 0 || (nodes > 1 && rates.network == 0) || ranks_of_node == 0)
    return std::nullopt;
  const GpuFigures figures{.name = {},
                           .product = {},
                           .flops_16bit = rates.flops,
                           .flops_fp32 = rates.flops,
                           .memory_bytes = 0,
                           .memory_bandwidth = rates.memory,
                           .link_bandwidth = rates.memory / 2,
                           .host_bandwidth = rates.memory,
                           .network_bandwidth = rates.network / ranks_of_node,
                           .source = {}};
  return predict_update(Transformer(config), sharding, {job.world->size(), 1}, {nodes, ranks_of_node}, figures,
                        {.products = 1, .attention_forward = 0.5, .attention_backward = 0.5, .memory = 1, .transfers = 1});
}

/// Trains a model of this configuration for five updates.
TrainingFigures train(DoctorJob& job, Communicator& comm, const TransformerConfig& config, UpdateSplit& split) {
  ShardingOptions sharding;
  sharding.batch = {.B = 2, .T = 64};
  ShardedModel sharded(config, sharding, comm, traits_of(job.device->kind(), kernels::threads()));
  sharded.allocate(*job.device, {}, job.options.comm);
  Executor& executor = sharded.executor();
  executor.initialize_parameters(1);
  executor.publish_parameters();
  const BatchReader tokens = random_batches(sharding.batch, config.vocab_size, comm.rank());
  const std::string& on_gpus = sharded.mesh().data_description;
  TrainingFigures training{.model = format("{} parameters", format_count(static_cast<double>(parameter_count(config)))),
                           .ranks = static_cast<std::size_t>(comm.size()),
                           .backend = comm.description() + (on_gpus.empty() ? "" : "; " + on_gpus)};
  split = {};
  if (const std::optional<StepPrediction> step = predict(job, config, sharding)) {
    const std::vector<Operation>& operations = sharded.plan().update;
    const auto messages = std::count_if(operations.begin(), operations.end(), [](const auto& op) { return collective_of(op); });
    split.predicted_compute = step->products + step->attention + step->memory_bound + step->optimizer;
    split.predicted_transfers = step->communication + static_cast<double>(messages) * job.rates.latency;
    if (job.nodes.size() > 1)
      split.tokens_to_balance = step->communication * job.rates.flops / Transformer(config).flops_per_token(sharding.batch.T);
  }
  for (std::uint64_t update = 1; update <= 5; ++update) {
    executor.reset_times();
    job.world->barrier();
    const Timer timer;
    const UpdateResult result =
        executor.run_update(tokens, {.update = update,
                                     .learning_rate = 3e-3,
                                     .clip_norm = 1,
                                     .tokens = static_cast<double>(sharding.batch.rows()) * comm.size()});
    const double seconds = slowest(*job.world, timer.seconds());
    const double compute = slowest(*job.world, executor.times().total() - executor.times().exposed);
    if (update == 1 || seconds < split.total) split.total = seconds, split.compute = compute;
    training.losses.push_back(result.loss);
    for (const double loss : job.world->gather(result.loss))
      training.agreed = training.agreed && (loss == result.loss || !std::isfinite(loss));
  }
  training.update_s = split.total;
  return training;
}

}  // namespace

Finding judge_training(const TrainingFigures& training) {
  Finding finding;
  finding.figures = {{"losses", training.losses}, {"update_s", training.update_s}, {"connection", training.backend}};
  const double first = training.losses.front(), last = training.losses.back();
  finding.text = format("{} of {} on {} ({}): loss {:.3f} to {:.3f}, {:.1f} ms each", plural(training.losses.size(), "update"),
                        training.model, plural(training.ranks, "rank"), training.backend, first, last, 1e3 * training.update_s);
  const bool finite = std::all_of(training.losses.begin(), training.losses.end(), [](double x) { return std::isfinite(x); });
  if (finite && training.agreed && last < first) return finding;
  finding.status = Status::failed;
  finding.text += !finite            ? "; the loss is not finite"
                  : !training.agreed ? "; the ranks have different losses"
                                     : "; the loss does not decrease";
  finding.advice =
      "some node computes or sends wrong numbers: run the check on fewer nodes to find out which; memory errors are in the "
      "system's log (dmesg, nvidia-smi -q -d ECC)";
  return finding;
}

Finding judge_update(const UpdateSplit& split, bool network_is_slow) {
  const double transfers = split.total - split.compute;
  const auto predicted = [&](double seconds) {
    return split.predicted_compute > 0 ? format(" (predicted {:.1f})", 1e3 * seconds) : std::string();
  };
  Finding finding{.text = format("{:.1f} ms: {:.1f} ms computing{}, {:.1f} ms in transfers{}", 1e3 * split.total,
                                 1e3 * split.compute, predicted(split.predicted_compute), 1e3 * transfers,
                                 predicted(split.predicted_transfers))};
  finding.figures = {{"update_s", split.total},
                     {"compute_s", split.compute},
                     {"predicted_compute_s", split.predicted_compute},
                     {"predicted_transfers_s", split.predicted_transfers},
                     {"tokens_to_balance", split.tokens_to_balance}};
  if (split.tokens_to_balance > 0)
    finding.text += format("; a rank needs {} tokens in a micro-batch to compute for as long as its node sends",
                           format_count(split.tokens_to_balance));
  if (!network_is_slow || transfers < split.compute) return finding;
  finding.status = Status::warning;
  finding.text += format("; the network takes {:.0f} % of an update", 100 * transfers / split.total);
  finding.advice =
      "repair the network; less goes through it with larger micro-batches (--batch-size), a copy of the model on each node "
      "(--sharding-strategy hybrid), --sharding-strategy grad-op, or --precision bf16 --reduce-dtype bf16";
  return finding;
}

std::optional<Finding> check_training(DoctorJob& job) {
  const std::unique_ptr<Communicator> comm = job.connect(job.options.comm);
  UpdateSplit split;
  Finding finding = judge_training(train(job, *comm, model_of(2, 64), split));
  // If that is fast, a model of two million parameters shows better where the time goes.
  if (finding.status == Status::ok && split.total < 0.03) finding = judge_training(train(job, *comm, model_of(4, 192), split));
  if (split.compute > 0) job.split = split;
  return finding;
}

std::optional<Finding> check_update(DoctorJob& job) {
  if (!job.split) return std::nullopt;
  return judge_update(*job.split, job.rates.network_is_slow);
}

}  // namespace fsdp
