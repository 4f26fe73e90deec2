// Evaluations with a batch size of their own.
#include "mpi_main.hpp"

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include <fsdp/fsdp.hpp>

#include "kernels/threads.hpp"
#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t width = 5, classes = 3;

std::size_t rank() { return static_cast<std::size_t>(world().rank()); }
std::size_t ranks() { return static_cast<std::size_t>(world().size()); }

using Floats = std::vector<float>;

Sequential model_of_numbers() {
  Sequential model;
  model.add("in", linear(width, 7)).add("act", gelu(7));
  model.add("blocks", repeat(2, [](std::size_t) {
              return residual(
                  sequential({{"norm", layer_norm(7)}, {"up", linear(7, 11)}, {"silu", silu(11)}, {"down", linear(11, 7)}}));
            }));
  return model.add("head", linear(7, classes)).loss(cross_entropy(classes, {.weight = {0.5f, 2.0f, 1.25f}}));
}
void fill_numbers(const Batch& batch) {
  for (std::size_t i = 0; i < batch.inputs().size(); ++i)
    batch.inputs()[i] = std::sin(static_cast<float>(i * i + 3 * rank() + 5 * batch.micro_batch()));
  for (std::size_t r = 0; r < batch.labels().size(); ++r)
    batch.labels()[r] = r % 4 == 3 ? -1 : static_cast<int>((r + rank()) % classes);
}

Sequential model_of_tokens() {
  Sequential model;
  model.add("first", parallel({{"tokens", embedding(11, 8)}, {"places", embedding(11, 8)}}))
      .add("block", transformer_block(8, {.heads = 2}))
      .add("head", linear(8, 11));
  return model.loss(cross_entropy(11));
}
/// The last two columns have no labels.
void fill_tokens(const Batch& batch) {
  for (std::size_t r = 0; r < batch.tokens().size(); ++r) {
    batch.tokens()[r] = static_cast<int>((r * r + rank()) % 11);
    batch.labels()[r] = r % 6 > 3 ? -1 : static_cast<int>((2 * r + 1) % 11);
  }
}

/// y = x. Counts its forward passes, and refuses batches whose B is odd.
class Watch final : public Layer {
 public:
  explicit Watch(std::size_t columns) : columns_(columns) {}
  std::size_t inputs() const override { return columns_; }
  std::size_t outputs() const override { return columns_; }
  void check_batch(std::size_t B, std::size_t) const override {
    if (B % 2 == 1) throw UserError("B is odd");
  }
  void forward(const ForwardPass& pass) const override { ++passes, ops::copy(pass, pass.y, pass.x); }
  void backward(const BackwardPass& pass) const override { ops::copy(pass, pass.dx, pass.dy); }
  mutable int passes = 0;

 private:
  std::size_t columns_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(evaluations_have_a_batch_size_of_their_own) {
  struct Results {
    double loss, share;
    Floats outputs, of_layer;
    bool operator==(const Results&) const = default;
  };
  const auto compare = [](const Sequential& model, const FillBatch& fill, const char* layer, FsdpOptions options) {
    const std::size_t T = options.sequence_length;
    const auto evaluated = [&](FullyShardedDataParallel& sharded, std::size_t B) {
      const auto fill_rows = [&](const Batch& batch) {
        BOOST_TEST_REQUIRE(batch.labels().size() == B * T);
        fill(batch);
      };
      return Results{sharded.evaluate(fill_rows), sharded.measure(accuracy, fill_rows), sharded.predict(fill_rows),
                     sharded.predict_layer(layer, fill_rows)};
    };
    const auto fill_update = [&](const Batch& batch) {
      BOOST_TEST_REQUIRE(batch.labels().size() == options.batch_size * T);
      fill(batch);
    };
    Job job;
    FullyShardedDataParallel plain(job, model, options);
    for (int i = 0; i < 3; ++i) plain.step(1e-2, fill_update);
    for (const std::size_t B : {1, 2, 7}) {
      FsdpOptions with = options, alone = options;
      with.eval_batch_size = alone.batch_size = B;
      FullyShardedDataParallel sharded(job, model, with), same_batch(job, model, alone);
      const Results initial = evaluated(sharded, B);
      BOOST_TEST((initial == evaluated(same_batch, B)));
      BOOST_TEST(initial.outputs.size() % (B * T) == 0u);
      for (int i = 0; i < 3; ++i) {
        sharded.step(1e-2, fill_update);
        BOOST_TEST((evaluated(sharded, B) != initial));
      }
      BOOST_TEST((parameters_of(sharded) == parameters_of(plain)));
      BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
      const MemoryUse estimated = estimate_memory(model, with, world().size(), "cpu", static_cast<int>(kernels::threads()));
      BOOST_TEST((estimated.parts == sharded.memory().parts));
      if (B == 7) BOOST_TEST(sharded.memory().total > plain.memory().total);
    }
  };
  for (const char* strategy : {"FULL_SHARD", "NO_SHARD", "SHARD_GRAD_OP"})
    for (const bool recomputes : {false, true}) {
      FsdpOptions options = {.batch_size = 3, .sharding_strategy = strategy, .activation_checkpointing = recomputes};
      compare(model_of_numbers(), fill_numbers, "blocks.1", options);
      options.gradient_accumulation_steps = 2;
      compare(model_of_numbers(), fill_numbers, "act", options);
      options.sequence_length = 6;
      options.param_dtype = "bf16";
      compare(model_of_tokens(), fill_tokens, "first", options);
    }
}

BOOST_AUTO_TEST_CASE(batch_sizes_of_evaluations_are_checked) {
  Job job;
  Sequential picky;
  picky.add("in", linear(width, 7)).add("watch", std::make_shared<Watch>(7)).add("head", linear(7, classes));
  picky.loss(cross_entropy(classes));
  const auto make = [&](const FsdpOptions& options) { FullyShardedDataParallel(job, picky, options); };
  make({.batch_size = 2, .eval_batch_size = 4});
  refused<CollectiveError>("with eval_batch_size 5: layer 'watch': B is odd",
                           [&] { make({.batch_size = 2, .eval_batch_size = 5}); });
  refused("with eval_batch_size 5: layer 'watch': B is odd",
          [&] { estimate_memory(picky, {.batch_size = 2, .eval_batch_size = 5}, 2); });
  refused<CollectiveError>("eval_batch_size -1 with sequence_length 1 is too large (a batch has 2^30 rows at most)",
                           [&] { make({.batch_size = 2, .eval_batch_size = static_cast<std::size_t>(-1)}); });
  if (ranks() > 1)
    refused<CollectiveError>("the ranks have different options or models ('eval_batch_size",
                             [&] { make({.batch_size = 2, .eval_batch_size = rank() == 1 ? 4u : 2u}); });
  FullyShardedDataParallel sharded(job, picky, {.batch_size = 2, .eval_batch_size = 4});
  sharded.step(1e-2, fill_numbers);
  refused<CollectiveError>("the function that fills micro-batch 0 does not write 2 of 4 numbers of labels()", [&] {
    sharded.evaluate(
        [](const Batch& batch) { std::ranges::fill(batch.inputs(), 1.0f), std::ranges::fill(batch.labels().first(2), 1); });
  });
  FullyShardedDataParallel transformer(
      job, TransformerDescription("gpt2").layers(1).width(8).heads(2).vocabulary(11).longest_sequence(6),
      {.batch_size = 3, .sequence_length = 6, .eval_batch_size = 5});
  FullyShardedDataParallel same_batch(
      job, TransformerDescription("gpt2").layers(1).width(8).heads(2).vocabulary(11).longest_sequence(6),
      {.batch_size = 5, .sequence_length = 6});
  BOOST_TEST(transformer.evaluate(fill_tokens) == same_batch.evaluate(fill_tokens));
  transformer.step(1e-2, fill_tokens);
}

BOOST_AUTO_TEST_CASE(token_data_are_evaluated_in_batches_of_that_size) {
  const std::filesystem::path folder = new_folder("api-outputs", "tokens");
  if (world().rank() == 0) {
    std::vector<std::int32_t> header(256);  // llm.c's format
    header[0] = 20240520, header[1] = 1, header[2] = 200;
    std::vector<std::uint16_t> tokens(200);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 11);
    std::ofstream file(folder / "tokens.bin", std::ios::binary);
    file.write(reinterpret_cast<const char*>(header.data()), 1024);
    file.write(reinterpret_cast<const char*>(tokens.data()), 400);
  }
  world().barrier();
  const auto description = TransformerDescription("gpt2").layers(1).width(8).heads(2).vocabulary(11).longest_sequence(6);
  Job job;
  std::set<double> losses;
  for (const std::size_t B : {0, 2, 5}) {
    FullyShardedDataParallel sharded(job, description, {.batch_size = 3, .sequence_length = 6, .eval_batch_size = B});
    const TokenData data(sharded, (folder / "tokens.bin").string());
    losses.insert(std::round(sharded.evaluate(data) * 1e5));
    if (B > 0)
      refused<CollectiveError>("or to an evaluation with eval_batch_size",
                               [&] { sharded.evaluate([&](const Batch& batch) { data.read(batch); }); });
  }
  BOOST_TEST(losses.size() == 1u);  // all targets count, in any batches
}
