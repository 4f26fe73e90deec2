// Trains a model of bytes with a layer of its own, sharded over the ranks of the job:
//   mpirun -np 4 own-layer [STRATEGY]
// It learns the alphabet, over and over. The last line is the same for each strategy, to the last digit.
#include <cstdio>

#include <fsdp/check_gradients.hpp>

#include "gated_convolution.hpp"

int main(int argc, char** argv) {
  const auto train = [&](fsdp::Job& job) {
    constexpr std::size_t width = 48, vocabulary = 32, length = 20;

    // Is the backward pass the derivative of the forward pass?
    const fsdp::GradientCheck check = fsdp::check_gradients(GatedConvolution(width, 4));
    if (job.rank() == 0)
      std::printf("gradients %s, worst %.1e (%s)\n", check.passed ? "right" : "WRONG", check.worst, check.where.c_str());
    if (!check.passed) return 1;

    fsdp::Sequential model;
    model.add("embedding", fsdp::embedding(vocabulary, width));
    for (int i = 0; i < 3; ++i) model.add("blocks." + std::to_string(i), std::make_shared<GatedConvolution>(width, 4));
    model.add("norm", fsdp::rms_norm(width))
        .add("head", fsdp::linear(width, vocabulary, false))
        .loss(fsdp::cross_entropy(vocabulary));

    fsdp::FsdpOptions options;
    options.batch_size = 3;
    options.sequence_length = length;
    options.sharding_strategy = argc > 1 ? argv[1] : "FULL_SHARD";
    fsdp::FullyShardedDataParallel sharded(job, model, options);

    const auto fill = [&](const fsdp::Batch& batch) {
      for (std::size_t r = 0; r < batch.tokens().size(); ++r) {
        const auto letter = static_cast<int>(r % length + 7 * (r / length) + 3 * sharded.updates()) + job.rank();
        batch.tokens()[r] = letter % 26;
        batch.labels()[r] = (letter + 1) % 26;
      }
    };
    double loss = 0;
    for (int step = 1; step <= 60; ++step) {
      loss = sharded.step(1e-2, fill).loss;
      if (job.rank() == 0 && step % 20 == 0) std::printf("step %d  loss %.4f\n", step, loss);
    }
    if (job.rank() == 0) std::printf("final loss %.17g\n", loss);
    return 0;
  };
  return fsdp::run(argc, argv, train, {.device = "cpu"});  // the layer's loop is for CPUs
}
