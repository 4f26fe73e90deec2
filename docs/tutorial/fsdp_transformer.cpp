// A transformer: what is wrapped, in which precision it computes, and what is recomputed.
//   mpirun -np 4 fsdp_transformer [TEXT]
// It learns a text, byte by byte: this program's own description, unless another file is named.
#include <fsdp/fsdp.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

const char* const description =
    "Fully sharded data parallelism gives each of N processes an N-th of the parameters, of the gradients and of the "
    "optimizer's state. Before a layer is used its parameters are gathered, and after that they are released. Behind its "
    "backward pass the gradients are summed over the processes, and each keeps its part of the sum. So the memory of many "
    "nodes holds one model. ";

int main(int argc, char** argv) {
  return fsdp::run(argc, argv, [&](fsdp::Job& job) {
    std::string text = description;
    job.agree([&] {  // what some ranks cannot read ends all of them, with one message
      if (argc < 2) return;
      std::ifstream file(argv[1], std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(file), {});
      if (text.size() < 1000)
        throw fsdp::UserError(std::string(argv[1]) + " is no text of 1,000 bytes or more (or cannot be read); name another");
    });

    fsdp::FsdpOptions options;
    options.batch_size = 4;
    options.sequence_length = 64;
    options.gradient_accumulation_steps = 2;  // an update is 2 x 4 sequences of each rank
    // Each block is a unit, and so are the embedding and the head where they do not share parameters (GPT-2's do). It is what
    // PyTorch's transformer_auto_wrap_policy does; "size" with min_num_params is its size_based_auto_wrap_policy.
    options.auto_wrap_policy = "layer";
    options.param_dtype = "bf16";             // gathered and computed with; the optimizer updates an fp32 copy
    options.reduce_dtype = "fp32";            // gradients are summed as they are
    options.activation_checkpointing = true;  // a block keeps its input alone, and computes once more in backward
    options.clip_norm = 1;

    fsdp::TransformerDescription gpt("gpt2");
    gpt.layers(3).width(96).heads(4).vocabulary(256).longest_sequence(64);
    fsdp::FullyShardedDataParallel sharded(job, gpt, options);
    if (job.rank() == 0)
      std::printf("%d ranks, %s; %zu bytes of each rank\n", job.size(), job.device().c_str(), sharded.memory().total);

    const auto fill = [&](const fsdp::Batch& batch) {
      for (std::size_t s = 0; s < options.batch_size; ++s) {
        // Where a sequence begins: another place for each rank, update, micro-batch and sequence.
        const std::size_t number =
            ((sharded.updates() * 2 + batch.micro_batch()) * options.batch_size + s) * static_cast<std::size_t>(job.size()) +
            static_cast<std::size_t>(job.rank());
        const std::size_t begin = number * 2654435761u % (text.size() - options.sequence_length - 1);
        for (std::size_t t = 0; t < options.sequence_length; ++t) {
          batch.tokens()[s * options.sequence_length + t] = static_cast<unsigned char>(text[begin + t]);
          batch.labels()[s * options.sequence_length + t] = static_cast<unsigned char>(text[begin + t + 1]);
        }
      }
    };
    double loss = 0;
    for (int step = 1; step <= 120; ++step) {
      const double rate = 3e-3 * std::min(1.0, step / 20.0);  // a warm-up
      loss = sharded.step(rate, fill).loss;
      if (job.rank() == 0 && step % 30 == 0) std::printf("step %d  loss %.3f nats per byte\n", step, loss);
    }
    return loss < 2.5 ? 0 : 1;
  });
}
