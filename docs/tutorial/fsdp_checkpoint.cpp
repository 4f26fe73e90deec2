// Checkpoints: sharded state for going on, at any number of ranks, and full state, of rank 0, for everything else.
//   mpirun -np 4 fsdp_checkpoint FOLDER      trains 20 steps and saves
//   mpirun -np 2 fsdp_checkpoint FOLDER      resumes from there with 2 ranks, and so on
#include <fsdp/fsdp.hpp>

#include <cmath>
#include <cstdio>
#include <span>
#include <string>

fsdp::Sequential model_of_waves() {
  fsdp::Sequential model;
  model.add("in", fsdp::linear(8, 128))
      .add("norm", fsdp::layer_norm(128))
      .add("gelu", fsdp::gelu(128))
      .add("out", fsdp::linear(128, 1));
  return model.loss(fsdp::mean_squared_error(1));
}

/// Example i of the update: eight points of a wave, and the next one. Ranks take their examples in turn, so that an update of
/// any number of ranks has the same ones.
void fill(const fsdp::Batch& batch, const fsdp::Job& job, std::uint64_t update) {
  const std::size_t mine = batch.targets().size();
  for (std::size_t i = 0; i < mine; ++i) {
    const auto number = static_cast<float>(i * static_cast<std::size_t>(job.size()) + static_cast<std::size_t>(job.rank()));
    const float start = 0.37f * number + 0.11f * static_cast<float>(update);
    for (std::size_t t = 0; t < 8; ++t) batch.inputs()[8 * i + t] = std::sin(start + 0.3f * static_cast<float>(t));
    batch.targets()[i] = std::sin(start + 0.3f * 8);
  }
}

int main(int argc, char** argv) {
  return fsdp::run(argc, argv, [&](fsdp::Job& job) {
    job.agree([&] {  // what is wrong on all ranks is said once
      if (argc != 2) throw fsdp::UserError("one argument is needed (where checkpoints lie); name a folder");
      if (48 % job.size() != 0)
        throw fsdp::UserError("the 48 examples of an update cannot be shared out evenly; start 1, 2, 3, 4, 6, ... ranks");
    });
    const std::string folder = argv[1];

    fsdp::FsdpOptions options;
    options.batch_size = static_cast<std::size_t>(48 / job.size());
    fsdp::FullyShardedDataParallel sharded(job, model_of_waves(), options);

    // Go on, if there is something to go on with. The number of ranks and the strategy may be others than those that saved.
    if (fsdp::FullyShardedDataParallel::can_load(folder)) sharded.load(folder);
    if (job.rank() == 0)
      std::printf("%s with %d ranks at update %llu\n", sharded.updates() > 0 ? "resumes" : "begins", job.size(),
                  static_cast<unsigned long long>(sharded.updates()));

    double loss = 0;
    for (int step = 1; step <= 20; ++step)
      loss = sharded.step(1e-2, [&](const fsdp::Batch& batch) { fill(batch, job, sharded.updates()); }).loss;

    // A sharded state dict: every rank writes what it holds, and nobody holds the whole model.
    const std::string step = sharded.save(folder).string();
    // A full state dict: one file with whole parameters, which rank 0 puts together in constant memory.
    const std::string whole = folder + "/model-" + std::to_string(sharded.updates()) + ".h5";
    sharded.save_full(whole);
    if (job.rank() == 0)
      std::printf("update %llu  loss %.6f  saved %s and %s\n", static_cast<unsigned long long>(sharded.updates()), loss,
                  step.c_str(), whole.c_str());

    // The same in memory, a parameter at a time: rank 0 may write it in any format, and the other ranks only help.
    double squares = 0;
    sharded.for_each_parameter([&](const std::string&, const fsdp::Shape&, std::span<const float> values) {
      for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
    });
    if (job.rank() == 0) std::printf("norm of the parameters %.6f\n", std::sqrt(squares));

    // Both hold the same numbers: a fresh model that reads the whole one has the loss of this one.
    fsdp::FullyShardedDataParallel reader(job, model_of_waves(), options);
    reader.load_full(whole);
    const auto held_out = [&](const fsdp::Batch& batch) { fill(batch, job, 1000); };
    const double mine = sharded.evaluate(held_out), read = reader.evaluate(held_out);
    if (job.rank() == 0) std::printf("held out %.9f, and of the whole file %.9f\n", mine, read);
    return mine == read ? 0 : 1;
  });
}
