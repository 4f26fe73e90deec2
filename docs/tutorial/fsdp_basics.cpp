// The first program: a small network learns to tell three spirals apart, sharded over all processes of the job.
//   mpirun -np 4 fsdp_basics
#include <fsdp/fsdp.hpp>

#include <cmath>
#include <cstdio>

/// Points of three spirals: each is described by 16 numbers, its features, and labelled with its spiral, 0, 1 or 2. Every rank
/// and every step has others.
void spirals(const fsdp::Batch& batch, int rank, std::uint64_t step) {
  constexpr std::size_t features = 16;
  for (std::size_t i = 0; i < batch.labels().size(); ++i) {
    const auto which = static_cast<int>(i % 3);
    const float along = std::fmod(0.618034f * static_cast<float>(1 + i + 31 * static_cast<std::size_t>(rank) + 7 * step), 1.0f);
    const float angle = 5 * along + 2.0944f * static_cast<float>(which), x = along * std::cos(angle),
                y = along * std::sin(angle);
    for (std::size_t f = 0; f < features / 2; ++f) {  // as waves of several lengths
      batch.inputs()[i * features + 2 * f] = std::sin(x * static_cast<float>(f + 1));
      batch.inputs()[i * features + 2 * f + 1] = std::sin(y * static_cast<float>(f + 1));
    }
    batch.labels()[i] = which;
  }
}

int main(int argc, char** argv) {
  return fsdp::run(argc, argv, [](fsdp::Job& job) {
    // 1. A model: layers one after the other, and a loss. Nothing takes memory yet.
    fsdp::Sequential model;
    model.add("hidden", fsdp::linear(16, 256)).add("gelu", fsdp::gelu(256)).add("out", fsdp::linear(256, 3));
    model.loss(fsdp::cross_entropy(3));

    // 2. Wrap it: each layer with parameters becomes a unit, of which every rank keeps its part.
    fsdp::FullyShardedDataParallel sharded(job, model, {.batch_size = 48, .sharding_strategy = "FULL_SHARD"});
    if (job.rank() == 0)
      for (const auto& [part, bytes] : sharded.memory().parts)
        std::printf("%-22s %8zu bytes of each rank\n", part.c_str(), bytes);

    // 3. Train as on one process. What others call zero_grad, backward and step is one call.
    const auto fill = [&](const fsdp::Batch& batch) { spirals(batch, job.rank(), sharded.updates()); };
    for (int step = 1; step <= 200; ++step) {
      const fsdp::StepResult result = sharded.step(1e-2, fill);
      if (job.rank() == 0 && step % 50 == 0)
        std::printf("step %d  loss %.4f  gradient norm %.3f\n", step, result.loss, result.gradient_norm);
    }

    // 4. Look at points that it has not seen.
    const double loss = sharded.evaluate([&](const fsdp::Batch& batch) { spirals(batch, job.rank() + 1000, 0); });
    if (job.rank() == 0) std::printf("held out  loss %.4f, %.4f before training\n", loss, std::log(3.0));
    return loss < 0.3 ? 0 : 1;
  });
}
