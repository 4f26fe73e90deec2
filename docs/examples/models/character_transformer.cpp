// A character-level GPT, written layer by layer: mpirun -np 2 character_transformer [FOLDER]
// It is the model of TransformerDescription("gpt2") with small sizes. On CPUs its losses are the same to the last bit; on GPUs,
// which add in another order there, at first to 1e-6.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

namespace {

const std::string text =
    "the ranks of a job share one model. each rank keeps a part of every layer, gathers the layer before it computes, and "
    "gives "
    "it back afterwards. the gradients of all ranks are summed, and each rank updates its own part. so a model may be larger "
    "than the memory of any rank, and its losses are those of one rank alone. ";
const std::string alphabet = " .,abcdefghijklmnopqrstuvwxyz";
constexpr std::size_t length = 32, width = 48, heads = 4, layers = 2, examples = 12, steps = 300;

int token_at(std::size_t place) { return static_cast<int>(alphabet.find(text[place % text.size()])); }

fsdp::Sequential model_of_layers() {
  constexpr float deviation = 0.02f;  // of GPT-2's initial weights; smaller where a block adds to its input
  fsdp::Sequential model;
  model.add("transformer.wte", fsdp::embedding(alphabet.size(), width, deviation));
  model.add("transformer.wpe", fsdp::position_embedding(length, width, deviation));
  model.add("transformer.h", fsdp::repeat(layers, [&](std::size_t) {
              return fsdp::transformer_block(
                  width, {.heads = heads,
                          .standard_deviation = deviation,
                          .out_standard_deviation = deviation * (1 / std::sqrt(2 * static_cast<float>(layers)))});
            }));
  model.add("transformer.ln_f", fsdp::layer_norm(width));
  model.add("lm_head", fsdp::linear(width, alphabet.size(), false, deviation));
  model.tie("lm_head.weight", "transformer.wte.weight");
  return model.loss(fsdp::cross_entropy(alphabet.size()));
}

std::vector<double> train(fsdp::FullyShardedDataParallel& sharded, std::size_t first_example) {
  std::vector<double> losses;
  for (std::size_t step = 0; step < steps; ++step)
    losses.push_back(sharded
                         .step(4e-3,
                               [&](const fsdp::Batch& batch) {
                                 for (std::size_t r = 0; r < batch.tokens().size(); ++r) {
                                   const std::size_t example = step * examples + first_example + r / length;
                                   const std::size_t place = example * 37 + r % length;
                                   batch.tokens()[r] = token_at(place);
                                   batch.labels()[r] = token_at(place + 1);
                                 }
                               })
                         .loss);
  return losses;
}

/// Continues a text by the most probable character, again and again.
std::string continued(fsdp::FullyShardedDataParallel& sharded, std::string so_far, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = so_far.size() < length ? 0 : so_far.size() - length;
    const std::vector<float> logits = sharded.predict([&](const fsdp::Batch& batch) {
      std::fill(batch.tokens().begin(), batch.tokens().end(), 0);
      for (std::size_t t = 0; begin + t < so_far.size(); ++t)
        batch.tokens()[t] = static_cast<int>(alphabet.find(so_far[begin + t]));
    });
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>((so_far.size() - begin - 1) * alphabet.size());
    so_far +=
        alphabet[static_cast<std::size_t>(std::max_element(row, row + static_cast<std::ptrdiff_t>(alphabet.size())) - row)];
  }
  return so_far;
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::run(argc, argv, [&](fsdp::Job& job) {
    const auto ranks = static_cast<std::size_t>(job.size()), rank = static_cast<std::size_t>(job.rank());
    job.agree([&] {
      if (examples % ranks != 0)
        throw fsdp::UserError("12 examples cannot be divided among the ranks; use 1, 2, 3, 4, 6 or 12");
    });
    const fsdp::FsdpOptions options = {.batch_size = examples / ranks, .sequence_length = length};
    const std::size_t first_example = rank * options.batch_size;

    fsdp::FullyShardedDataParallel sharded(job, model_of_layers(), options);
    if (argc > 1) sharded.save_full(std::string(argv[1]) + "/initial.h5");
    const std::vector<double> losses = train(sharded, first_example);
    for (std::size_t step = 1; step <= steps && rank == 0; ++step)
      if (step <= 10 || step % 50 == 0) std::printf("step %zu  loss %.9g\n", step, losses[step - 1]);

    auto description = fsdp::TransformerDescription("gpt2");
    description.layers(layers).width(width).heads(heads).vocabulary(alphabet.size()).longest_sequence(length);
    fsdp::FullyShardedDataParallel whole(job, description, options);
    const std::vector<double> of_whole = train(whole, first_example);
    const bool same = of_whole == losses, near = std::abs(of_whole[9] / losses[9] - 1) < 1e-5;
    if (rank == 0)
      std::printf("TransformerDescription has %s losses\n", same ? "the same" : near ? "nearly the same" : "OTHER");

    const std::string sample = continued(sharded, "the ranks of ", 40);
    if (rank == 0) std::printf("%s\n", sample.c_str());
    return near && losses.back() < losses.front() / 1.3 ? 0 : 1;
  });
}
