#include "fsdp-doctor/training.hpp"

#include <algorithm>
#include <cmath>

#include "base/format.hpp"
#include "base/timer.hpp"
#include "fsdp/sharded_model.hpp"
#include "kernels/threads.hpp"
#include "train/measure.hpp"

namespace fsdp {

namespace {

TransformerConfig tiny_model() {
  TransformerConfig config = arch_config("gpt2");
  config.vocab_size = 256;
  config.max_positions = 32;
  config.layers = 2;
  config.heads = config.kv_heads = 2;
  config.head_size = 32;
  config.width = 64;
  config.ffn_width = 256;
  return config;
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

std::optional<Finding> check_training(DoctorJob& job) {
  const std::unique_ptr<Communicator> comm = job.connect(job.options.comm);
  ShardingOptions sharding;
  sharding.batch = {.B = 2, .T = 32};
  const TransformerConfig config = tiny_model();
  ShardedModel sharded(config, sharding, *comm, traits_of(job.device->kind(), kernels::threads()));
  sharded.allocate(*job.device, {}, job.options.comm);
  Executor& executor = sharded.executor();
  executor.initialize_parameters(1);
  executor.publish_parameters();
  const BatchReader tokens = random_batches(sharding.batch, config.vocab_size, comm->rank());
  const std::string& on_gpus = sharded.mesh().data_description;
  TrainingFigures training{.model = format("{} parameters", format_count(static_cast<double>(parameter_count(config)))),
                           .ranks = static_cast<std::size_t>(comm->size()),
                           .backend = comm->description() + (on_gpus.empty() ? "" : "; " + on_gpus)};
  for (std::uint64_t update = 1; update <= 5; ++update) {
    const Timer timer;
    const UpdateResult result =
        executor.run_update(tokens, {.update = update,
                                     .learning_rate = 1e-2,
                                     .clip_norm = 1,
                                     .tokens = static_cast<double>(sharding.batch.rows()) * comm->size()});
    const double seconds = timer.seconds();
    training.update_s = update == 1 ? seconds : std::min(training.update_s, seconds);
    training.losses.push_back(result.loss);
    for (const double loss : job.world->gather(result.loss))
      training.agreed = training.agreed && (loss == result.loss || !std::isfinite(loss));
  }
  return judge_training(training);
}

}  // namespace fsdp
