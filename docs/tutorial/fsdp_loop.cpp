// A loop of one's own with all that fsdp-train has around it: data, checkpoints, stops and metrics. Arguments: a file of tokens
// below 512, and the number of updates. Stop it by a signal, or by a file checkpoints/stop; the same command continues.
#include <cstdlib>
#include <fsdp/fsdp.hpp>

int main(int argc, char** argv) {
  const auto train = [&](fsdp::Job& job) {
    const std::uint64_t last = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200;
    const auto model = fsdp::TransformerDescription("gpt2").layers(2).width(32).heads(2).vocabulary(512).longest_sequence(32);
    fsdp::FullyShardedDataParallel sharded(
        job, model, {.batch_size = 12 / static_cast<std::size_t>(job.size()), .sequence_length = 32, .background_saves = true});
    fsdp::TokenData data(sharded, argc > 1 ? argv[1] : "tokens.bin", {.shuffle = true});
    if (sharded.restore("checkpoints")) data.restore(sharded.data("tokens").value());
    fsdp::MetricsLog log(sharded, {.log_file = "metrics.jsonl", .max_update = last, .save_dir = "checkpoints"});
    for (bool ends = sharded.updates() >= last; !ends;) {
      const fsdp::StepResult result = sharded.step(1e-3, [&](const fsdp::Batch& batch) { data.read(batch); });
      log.train(result, 1e-3, {{"epochs", static_cast<double>(data.position()) / static_cast<double>(data.sequences())}});
      data.advance();
      ends = job.should_stop() || sharded.updates() >= last;
      if (ends || sharded.updates() % 10 == 0)
        sharded.save("checkpoints", {.keep_last = 2, .data = {{"tokens", data.state()}}});
    }
    sharded.finish_save();
    log.end(job.stop_reason());
    return job.stop_reason().empty() ? 0 : fsdp::stopped_exit_code;
  };
  return fsdp::run(argc, argv, train, {.stop_signals = true, .stop_folder = "checkpoints"});
}
