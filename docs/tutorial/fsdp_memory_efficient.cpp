// Memory: what each choice costs, before it is made and after.
//   mpirun -np 4 fsdp_memory_efficient
#include <fsdp/fsdp.hpp>

#include <cstdio>
#include <string>

double MB(std::size_t bytes) { return static_cast<double>(bytes) / 1e6; }

std::size_t bytes_of(const fsdp::MemoryUse& use, const std::string& part) {
  for (const auto& [name, bytes] : use.parts)
    if (name == part) return bytes;
  return 0;
}

int main(int argc, char** argv) {
  return fsdp::run(argc, argv, [](fsdp::Job& job) {
    fsdp::TransformerDescription gpt("gpt2");
    gpt.layers(4).width(128).heads(4).vocabulary(512).longest_sequence(128);
    fsdp::FsdpOptions plain;
    plain.batch_size = 2;
    plain.sequence_length = 128;

    // 1. By the plan, for any number of ranks and any device: no memory is taken for that.
    const auto line = [&](const char* what, const fsdp::FsdpOptions& options, int ranks, const char* device = "cpu") {
      const fsdp::MemoryUse use = fsdp::estimate_memory(gpt, options, ranks, device);
      if (job.rank() != 0) return;
      std::printf("%-34s %2d ranks  parameters %6.2f  gradients %6.2f  optimizer %6.2f  activations %6.2f  all %6.2f MB\n",
                  what, ranks, MB(bytes_of(use, "parameters")), MB(bytes_of(use, "gradients")),
                  MB(bytes_of(use, "optimizer state")), MB(bytes_of(use, "activations")), MB(use.total));
    };
    for (const int ranks : {1, 4, 64}) {
      for (const char* strategy : {"NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"}) {
        fsdp::FsdpOptions options = plain;
        options.sharding_strategy = strategy;
        line(strategy, options, ranks);
      }
    }
    fsdp::FsdpOptions less = plain;
    less.activation_checkpointing = true;
    line("FULL_SHARD, recomputation", less, 4);
    less.param_dtype = "bf16";
    line("FULL_SHARD, recomputation, bf16", less, 4);
    less.limit_all_gathers = 1;  // one unit is whole at a time: less memory, and nothing is gathered ahead
    line("the same, one unit at a time", less, 4);

    fsdp::FsdpOptions offloaded = less;  // parameters and optimizer state wait in the host's memory, where there are GPUs
    offloaded.offload_parameters = "cpu";
    line("the same on GPUs", less, 4, "cuda");
    line("the same on GPUs, offloaded", offloaded, 4, "cuda");

    // 2. Measured: what was in use at most is what was planned, to the byte. What libraries allocate is estimated in both.
    fsdp::FullyShardedDataParallel sharded(job, gpt, less);
    for (int step = 1; step <= 3; ++step)
      sharded.step(1e-3, [&](const fsdp::Batch& batch) {
        for (std::size_t r = 0; r < batch.tokens().size(); ++r)
          batch.tokens()[r] = static_cast<int>(r % 512), batch.labels()[r] = static_cast<int>((r + 1) % 512);
      });
    if (job.rank() == 0) std::printf("planned %zu bytes, measured %zu\n", sharded.memory().total, sharded.peak_bytes());
    return sharded.peak_bytes() == sharded.memory().total ? 0 : 1;
  });
}
