// Evaluations with a batch size of their own, outputs of layers inside others, and gradients of inputs.
#include "mpi_main.hpp"

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include <fsdp/fsdp.hpp>

#include "kernels/threads.hpp"
#include "support.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t width = 5, classes = 3;

std::size_t rank() { return static_cast<std::size_t>(world().rank()); }
std::size_t ranks() { return static_cast<std::size_t>(world().size()); }

const json& golden() {
  static const json all = read_json(golden_folder("").parent_path().parent_path() / "input_gradients" / "input_gradients.json");
  return all;
}
using Floats = std::vector<float>;

/// The model of tests/golden/input_gradients/make.py.
Sequential model_of_golden() {
  Sequential model;
  model.add("in", linear(width, 7)).add("act", gelu(7));
  model.add("blocks", repeat(2, [](std::size_t) {
              return residual(
                  sequential({{"norm", layer_norm(7)}, {"up", linear(7, 11)}, {"silu", silu(11)}, {"down", linear(11, 7)}}));
            }));
  return model.add("head", linear(7, classes)).loss(cross_entropy(classes, {.weight = {0.5f, 2.0f, 1.25f}}));
}
void set_parameters(FullyShardedDataParallel& model) {
  for (const auto& [name, values] : golden()["parameters"].items()) model.set_parameter(name, values.get<Floats>());
}

/// The rows of make.py over all ranks, in order. Rows after its last one do not count.
std::size_t rows_of_golden() { return golden()["labels"].size(); }
std::size_t rows_of_rank() { return (rows_of_golden() + ranks() - 1) / ranks(); }
void fill_golden(const Batch& batch) {
  const auto x = golden()["x"].get<Floats>();
  const auto labels = golden()["labels"].get<std::vector<int>>();
  const std::size_t R = batch.labels().size();
  for (std::size_t r = 0; r < R; ++r) {
    const std::size_t row = rank() * R + r;
    batch.labels()[r] = row < labels.size() ? labels[row] : -1;
    for (std::size_t c = 0; c < width; ++c) batch.inputs()[r * width + c] = row < labels.size() ? x[row * width + c] : 0.5f;
  }
}
/// This rank's part of numbers for all rows, `columns` of each.
Floats part_of_rank(const Floats& all, std::size_t columns) {
  const std::size_t R = rows_of_rank(), begin = std::min(all.size(), rank() * R * columns);
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), begin + R * columns))};
}
void require_near(const Floats& found, const Floats& wanted, float tolerance) {
  BOOST_TEST_REQUIRE(found.size() >= wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) BOOST_REQUIRE_SMALL(found[i] - wanted[i], tolerance);
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

/// y = x; the inner layer is never run.
class Idle final : public Composition {
 public:
  Idle() : Composition("idle", {{"inner", linear(7, 7)}}) {}
  void forward(const ForwardPass& pass) const override { ops::copy(pass, pass.y, pass.x); }
  void backward(const BackwardPass& pass) const override { ops::copy(pass, pass.dx, pass.dy); }
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
      compare(model_of_golden(), fill_numbers, "blocks.1.up", options);
      options.gradient_accumulation_steps = 2;
      compare(model_of_golden(), fill_numbers, "act", options);
      options.sequence_length = 6;
      options.param_dtype = "bf16";
      compare(model_of_tokens(), fill_tokens, "first.tokens", options);
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

BOOST_AUTO_TEST_CASE(outputs_of_inner_layers) {
  for (const char* type : {"fp32", "bf16"})
    for (const char* strategy : {"FULL_SHARD", "NO_SHARD"}) {
      Job job;
      FullyShardedDataParallel sharded(
          job, model_of_golden(),
          {.batch_size = 2, .sharding_strategy = strategy, .param_dtype = type, .eval_batch_size = rows_of_rank()});
      set_parameters(sharded);
      for (const auto& [layer, values] : golden()["outputs"].items()) {
        const auto wanted = values.get<Floats>();
        const Floats found = sharded.predict_layer(layer, fill_golden);
        const std::size_t columns = wanted.size() / rows_of_golden();
        BOOST_TEST(found.size() == rows_of_rank() * columns);
        require_near(found, part_of_rank(wanted, columns), type == std::string("fp32") ? 2e-6f : 3e-2f);
      }
      BOOST_TEST((sharded.predict_layer("blocks.0.up", fill_golden) != sharded.predict_layer("blocks.1.up", fill_golden)));
      BOOST_TEST(std::abs(sharded.evaluate(fill_golden) - golden()["loss"].get<double>()) < (type[0] == 'f' ? 1e-6 : 1e-2));
    }
}

BOOST_AUTO_TEST_CASE(inner_layers_in_all_compositions) {
  const auto before = std::make_shared<Watch>(7), inside = std::make_shared<Watch>(7), after = std::make_shared<Watch>(7);
  Sequential model;
  model.add("before", before)
      .add("images", positions(7, sequential({{"one", linear(1, 2)}, {"two", linear(2, 1)}})))
      .add("part",
           keep_columns(3, sequential({{"sum", parallel({{"a", linear(4, 4)}, {"b", identity(4)}})}, {"last", tanh(4)}})))
      .add("idle", std::make_shared<Idle>())
      .add("mlp", residual(sequential({{"watch", inside}, {"deeper", residual(sequential({{"x", linear(7, 7)}}))}})))
      .add("after", after)
      .loss(mean_squared_error(7));
  Job job;
  FullyShardedDataParallel sharded(job, model, {.batch_size = 2, .check_first_update = false, .eval_batch_size = 4});
  const auto fill = [](const Batch& batch) {
    for (std::size_t i = 0; i < batch.inputs().size(); ++i) batch.inputs()[i] = std::cos(static_cast<float>(i + rank()));
    std::ranges::fill(batch.targets(), 0.0f);
  };
  const auto output = [&](const char* layer) { return sharded.predict_layer(layer, fill); };
  BOOST_TEST(output("images.one").size() == 4u * 7 * 2);
  BOOST_TEST((output("images.two") == output("images")));
  const Floats a = output("part.sum.a"), b = output("part.sum.b"), sum = output("part.sum"), part = output("part");
  BOOST_TEST(sum.size() == 4u * 4);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    BOOST_TEST(sum[i] == a[i] + b[i]);
    BOOST_TEST(std::abs(part[i / 4 * 7 + i % 4] - std::tanh(sum[i])) < 1e-6f);
  }
  const Floats in = output("idle"), deeper = output("mlp.deeper"), x = output("mlp.deeper.x"), mlp = output("mlp");
  BOOST_TEST((in == part));
  BOOST_TEST((output("mlp.watch") == in));
  for (std::size_t i = 0; i < in.size(); ++i) {
    BOOST_TEST(deeper[i] == in[i] + x[i]);  // that of the outer one of two layers with this name
    BOOST_TEST(mlp[i] == in[i] + deeper[i]);
  }
  // Only the layers up to the named one run.
  before->passes = inside->passes = after->passes = 0;
  output("part.sum.a");
  BOOST_TEST(before->passes == 1);
  BOOST_TEST(inside->passes == 0);
  output("mlp.deeper.x");
  BOOST_TEST(inside->passes == 1);
  BOOST_TEST(after->passes == 0);
  sharded.predict(fill);
  BOOST_TEST(after->passes == 1);
  sharded.step(1e-2, fill);  // a pass that stopped has no effect on later ones
  BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);

  refused<CollectiveError>("the layer 'idle.inner' has no outputs (the layer around it has not run it)",
                           [&] { output("idle.inner"); });
  refused<CollectiveError>("the model has no layer 'mlp.deep' (it has mlp.watch, mlp.deeper, mlp.deeper.x); give one of these",
                           [&] { output("mlp.deep"); });
  refused<CollectiveError>("the model has no layer 'none' (it has before, images, part, idle, mlp, after); give one of these",
                           [&] { output("none"); });
  if (ranks() > 1)
    refused<CollectiveError>("the ranks name different layers", [&] { output(rank() == 1 ? "mlp" : "mlp.watch"); });
  Sequential twice;
  twice.add("a", sequential({{"b.c", relu(7)}, {"b", sequential({{"c", tanh(7)}})}})).add("d", linear(7, 7));
  twice.loss(mean_squared_error(7));
  FullyShardedDataParallel named_alike(job, twice, {.batch_size = 2});
  refused<CollectiveError>("the model has 2 layers 'a.b.c'", [&] { named_alike.predict_layer("a.b.c", fill); });
}

BOOST_AUTO_TEST_CASE(gradients_of_inputs) {
  const auto wanted = part_of_rank(golden()["dx"].get<Floats>(), width);
  std::map<std::string, Floats> of_type;
  const auto compare = [&](const FsdpOptions& options) {
    Job job;
    FullyShardedDataParallel sharded(job, model_of_golden(), options);
    set_parameters(sharded);
    const Parameters before = parameters_of(sharded);
    const double loss = sharded.evaluate(fill_golden);
    const Floats found = sharded.input_gradients(fill_golden);
    BOOST_TEST(found.size() == rows_of_rank() * width);
    float largest = 0;
    for (const float one : golden()["dx"].get<Floats>()) largest = std::max(largest, std::abs(one));
    require_near(found, wanted,
                 largest * (options.param_dtype == "fp32"   ? 1e-5f
                            : options.param_dtype == "fp16" ? 4e-3f
                                                            : 3e-2f));
    for (std::size_t i = wanted.size(); i < found.size(); ++i) BOOST_TEST(found[i] == 0);  // rows that do not count
    BOOST_TEST((of_type.try_emplace(options.param_dtype, found).first->second == found));
    BOOST_TEST((sharded.input_gradients(fill_golden) == found));
    BOOST_TEST((parameters_of(sharded) == before));
    BOOST_TEST(sharded.evaluate(fill_golden) == loss);
    sharded.step(1e-3, fill_golden);
    BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  };
  for (const char* type : {"fp32", "bf16", "fp16"})
    for (const char* strategy : {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "optim", "HYBRID_SHARD"}) {
      if (type != std::string("fp32") && strategy != std::string("FULL_SHARD") && strategy != std::string("NO_SHARD")) continue;
      FsdpOptions options = {.batch_size = rows_of_rank(), .sharding_strategy = strategy, .param_dtype = type};
      if (strategy == std::string("HYBRID_SHARD")) options.shard_group_size = world().size();
      BOOST_TEST_CONTEXT(type << " " << strategy) {
        compare(options);
        options.gradient_accumulation_steps = 2, options.activation_checkpointing = true;
        compare(options);
        options.checkpoint_every = 2;
        compare(options);
        options.activation_checkpointing = false, options.checkpoint_every = 1, options.recompute_num_layers = "1";
        compare(options);
        options.freeze = {"in.*", "blocks.*"};
        compare(options);
        options.recompute_num_layers = "0", options.train_only = {"blocks.1.down.*"}, options.freeze = {};
        compare(options);
      }
    }
}

BOOST_AUTO_TEST_CASE(gradients_of_inputs_are_differences_of_losses) {
  Job job;
  Sequential model;  // dropout, and terms of the loss that only training has
  model.add("in", linear(width, 9)).add("act", fsdp::tanh(9)).add("dropout", dropout(9, 0.5)).add("head", linear(9, classes));
  model.loss(cross_entropy(classes, 0.2, 0.1));
  FullyShardedDataParallel sharded(job, model, {.batch_size = 4, .freeze = {"in.*"}, .eval_batch_size = 4}),
      plain(job, model, {.batch_size = 4, .freeze = {"in.*"}});
  sharded.step(1e-2, fill_numbers), plain.step(1e-2, fill_numbers);
  const Floats gradients = sharded.input_gradients(fill_numbers);
  for (std::size_t r = 0; r < ranks(); ++r)
    for (const std::size_t i : {std::size_t{0}, std::size_t{8}, std::size_t{17}}) {  // row 3 does not count
      const auto at = [&](float change) {
        return sharded.evaluate([&](const Batch& batch) {
          fill_numbers(batch);
          if (rank() == r) batch.inputs()[i] += change;
        });
      };
      const double difference = (at(0.02f) - at(-0.02f)) / 0.04;
      if (rank() == r) BOOST_TEST(std::abs(difference - static_cast<double>(gradients[i])) < 2e-4);
      if (i == 17) BOOST_TEST(difference == 0);
    }
  // Training continues with the same numbers, also after freeze() and unfreeze().
  for (auto* const each : {&sharded, &plain}) {
    each->step(1e-2, fill_numbers);
    each->unfreeze({"in.*"});
    each->step(1e-2, fill_numbers);
  }
  sharded.input_gradients(fill_numbers);
  sharded.step(1e-2, fill_numbers), plain.step(1e-2, fill_numbers);
  BOOST_TEST((parameters_of(sharded) == parameters_of(plain)));

  FullyShardedDataParallel tokens(job, model_of_tokens(), {.batch_size = 2, .sequence_length = 6});
  refused<CollectiveError>("input_gradients() is for models of numbers (tokens have no gradient)",
                           [&] { tokens.input_gradients(fill_tokens); });
  refused<CollectiveError>("no row of this batch counts in the loss", [&] {
    sharded.input_gradients([](const Batch& batch) { fill_numbers(batch), std::ranges::fill(batch.labels(), -1); });
  });
}

BOOST_AUTO_TEST_CASE(gradients_of_inputs_that_do_not_fit_change_nothing) {
  Sequential model;
  for (int i = 0; i < 6; ++i) model.add("layer" + std::to_string(i), linear(width, width));
  model.add("head", linear(width, classes)).loss(cross_entropy(classes));
  FsdpOptions options = {.batch_size = 3000, .activation_checkpointing = true, .freeze = {"layer*"}};
  Job job;
  FullyShardedDataParallel plain(job, model, options);
  options.memory_limit = plain.memory().total;
  FullyShardedDataParallel sharded(job, model, options);
  sharded.step(1e-2, fill_numbers), plain.step(1e-2, fill_numbers);
  refused<CollectiveError>("are allowed (memory_limit)", [&] { sharded.input_gradients(fill_numbers); });
  const Floats gradients = plain.input_gradients(fill_numbers);
  BOOST_TEST(plain.memory().total > options.memory_limit);
  BOOST_TEST(sharded.memory().total == options.memory_limit);
  sharded.step(1e-2, fill_numbers), plain.step(1e-2, fill_numbers);
  BOOST_TEST((parameters_of(sharded) == parameters_of(plain)));
}
