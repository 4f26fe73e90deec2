// The program of train.py with libfsdp. docs/from-pytorch-script.md maps one to the other, line by line.
//   mpirun -np 2 from-pytorch [FILE FOR THE INITIAL WEIGHTS]
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include <fsdp/fsdp.hpp>

fsdp::LayerPtr block(std::size_t width) {
  return fsdp::residual(fsdp::sequential({{"norm", fsdp::layer_norm(width)},
                                          {"up", fsdp::linear(width, 4 * width)},
                                          {"gelu", fsdp::gelu(4 * width)},
                                          {"down", fsdp::linear(4 * width, width)}}));
}

void fill(const fsdp::Batch& batch, const std::string& text, std::size_t step, const fsdp::Job& job) {
  const std::size_t begin = ((2 * step + batch.micro_batch()) * job.size() + job.rank()) * 128 % (text.size() - 128);
  for (std::size_t i = 0; i < 128; ++i) {
    batch.tokens()[i] = static_cast<unsigned char>(text[begin + i]);
    batch.labels()[i] = static_cast<unsigned char>(text[begin + i + 1]);
  }
}

void report(const std::string& what, double loss, const fsdp::Job& job) {
  if (job.rank() == 0) std::printf("%s  loss %.7f\n", what.c_str(), loss);
}

int main(int argc, char** argv) {
  return fsdp::run(argc, argv, [&](fsdp::Job& job) {
    std::ifstream file("text.txt", std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (text.size() < 256) throw fsdp::UserError("text.txt is missing or short; give a text of at least 256 bytes");
    fsdp::Sequential model;
    model.add("embedding", fsdp::embedding(256, 64));
    model.add("block0", block(64));
    model.add("block1", block(64));
    model.add("norm", fsdp::layer_norm(64));
    model.add("head", fsdp::linear(64, 256));
    model.loss(fsdp::cross_entropy(256));
    fsdp::FsdpOptions options;
    options.optimizer = "adamw";
    options.beta1 = 0.9, options.beta2 = 0.95, options.weight_decay = 0.1;
    options.batch_size = 4, options.sequence_length = 32;
    options.gradient_accumulation_steps = 2;
    options.clip_norm = 1;
    fsdp::FullyShardedDataParallel sharded(job, model, options);
    if (argc > 1) sharded.save_full(argv[1]);
    if (sharded.can_load("checkpoint")) sharded.load("checkpoint");
    for (std::size_t step = sharded.updates(); step < 20; ++step) {
      const double rate = 1e-2 * std::min(1.0, static_cast<double>(step + 1) / 5);
      const auto batch_of_step = [&](const fsdp::Batch& batch) { fill(batch, text, step, job); };
      report("step " + std::to_string(step + 1), sharded.step(rate, batch_of_step).loss, job);
      if (step % 10 == 9) sharded.save("checkpoint");
    }
    report("held out", sharded.evaluate([&](const fsdp::Batch& batch) { fill(batch, text, 1000, job); }), job);
    return 0;
  });
}
