// Models with several inputs, each with a tower: PyTorch's losses and weights at any number of ranks, the same bits under all
// strategies, outputs and gradients of a tower, and what is refused.
#include "mpi_main.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

#include "images.hpp"
#include "support.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t rows = 12, length = 7, vocabulary = 11, classes = 5, micro_batches = 2, updates = 6;

/// As in golden/layers/exact.py.
std::int32_t integer(std::size_t i, std::size_t seed, std::size_t limit) {
  return static_cast<std::int32_t>((i * 7919 + seed * 104729) % 1009 % limit);
}

/// This rank's rows of a micro-batch, as if all micro-batches had `rows` rows on all ranks together.
struct Filler {
  const Job& job;
  std::size_t seed;

  void write(std::span<float> to, std::size_t number) const {
    const std::vector<float> all = exact(to.size() * static_cast<std::size_t>(job.size()), seed + number);
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(to.size()) * job.rank(), to.size(), to.begin());
  }
  void write(std::span<std::int32_t> to, std::size_t number, std::size_t limit) const {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = integer(to.size() * static_cast<std::size_t>(job.rank()) + i, seed + number, limit);
  }
};
Filler filler(const Job& job, std::uint64_t update, const Batch& batch) {
  return {job, 1000 + 10 * (update * micro_batches + batch.micro_batch())};
}
FillBatch for_classifier(const Job& job, std::uint64_t update) {
  return [&job, update](const Batch& batch) {
    const Filler from = filler(job, update, batch);
    from.write(batch.inputs("pixels"), 0), from.write(batch.tokens("words"), 1, vocabulary);
    from.write(batch.inputs("more"), 2), from.write(batch.labels(), 3, classes);
  };
}
FillBatch for_clip(const Job& job, std::uint64_t update) {
  return [&job, update](const Batch& batch) {
    const Filler from = filler(job, update, batch);
    from.write(batch.inputs("pixels"), 0), from.write(batch.tokens("words"), 1, vocabulary);
  };
}

Sequential classifier() {
  Sequential model;
  model.towers(
      {{"image", Tower("pixels", numbers(5)).add("in", linear(5, 4)).add("tanh", fsdp::tanh(4)).add("out", linear(4, 3))},
       {"text", Tower("words", tokens(1, vocabulary), length)
                    .add("embedding", embedding(vocabulary, 4))
                    .add("attention", residual(multi_head_attention(4, {.heads = 2, .causal = true, .bias = false})))
                    .fold()
                    .add("out", linear(4 * length, 3))},
       {"more", Tower("more", numbers(2), 3).fold()}});
  model.add("mix", linear(12, 6)).add("tanh", fsdp::tanh(6)).add("head", linear(6, classes));
  return std::move(model.loss(cross_entropy(classes)));
}

// The model of docs/api.md.
LayerPtr encoder(std::size_t in, std::size_t hidden, std::size_t out) {
  return sequential({{"in", linear(in, hidden)},
                     {"gelu", gelu(hidden)},
                     {"norm", layer_norm(hidden)},
                     {"out", linear(hidden, out)},
                     {"unit", recorded(out, [](Tape&, Value x) { return x / sqrt(row_sum(square(x)) + 1e-12f); })}});
}

LossPtr clip_loss(std::size_t n, float scale) {
  return recorded_loss(2 * n, [=](Tape& tape, Value x) {
    const Value s = exp(tape.parameter("log_scale", {1}, constant(scale))), all = tape.all(), own = tape.own_row();
    const auto side = [&](std::size_t mine, std::size_t other) {
      return cross_entropy(matmul(s * columns(x, mine, n), columns(all, other, n), ops::Transpose::yes), own);
    };
    return 0.5f * (side(0, n) + side(n, 0));
  });
}

Sequential clip() {
  Sequential model;
  model.towers({{"image", Tower("pixels", numbers(5)).add("body", encoder(5, 4, 3))},
                {"text", Tower("words", tokens(1, vocabulary), length)
                             .add("embedding", embedding(vocabulary, 4))
                             .fold()
                             .add("mean", vision::mean_pool(length, 4))
                             .add("body", encoder(4, 6, 3))}});
  return std::move(model.loss(clip_loss(3, 0)));
}

struct Outcome {
  std::vector<double> losses;
  Parameters parameters;  // on rank 0
  bool operator==(const Outcome&) const = default;
};

FsdpOptions options_of(const Job& job, const std::string& strategy = "FULL_SHARD") {
  return golden_options(job, rows, micro_batches, strategy);
}

struct Case {
  std::string name;
  Sequential (*model)();
  FillBatch (*fill)(const Job&, std::uint64_t);
  json golden = json::parse(std::ifstream(std::string(FSDP_TEST_DATA) + "/layers/towers.json"))[name];

  void set_initial(FullyShardedDataParallel& sharded) const {
    std::size_t seed = 0;
    for (const auto& [parameter, values] : golden["weights"].items())
      sharded.set_parameter(parameter, exact(values.size(), seed++));
  }
  Outcome train(Job& job, const FsdpOptions& options) const {
    FullyShardedDataParallel sharded(job, model(), options);
    set_initial(sharded);
    Outcome outcome;
    for (std::uint64_t update = 0; update < updates; ++update)
      outcome.losses.push_back(sharded.step(0.1, fill(job, update)).loss);
    outcome.parameters = parameters_of(sharded);
    BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
    return outcome;
  }
};
Case classifier_case() { return {"classifier", classifier, for_classifier}; }
Case clip_case() { return {"clip", clip, for_clip}; }

}  // namespace

BOOST_AUTO_TEST_CASE(losses_and_weights_are_pytorchs_at_any_number_of_ranks) {
  Job job;
  for (const Case& one : {classifier_case(), clip_case()}) {
    const Outcome full = one.train(job, options_of(job));
    for (std::size_t u = 0; u < updates; ++u)
      BOOST_TEST(std::abs(full.losses[u] - one.golden["losses"][u].get<double>()) < 1e-6 * full.losses[u],
                 one.name << " " << u);
    if (job.rank() == 0) {
      BOOST_TEST(full.parameters.size() == one.golden["weights"].size());
      for (const auto& [name, wanted] : one.golden["weights"].items())
        for (std::size_t i = 0; i < wanted.size(); ++i)
          BOOST_TEST(std::abs(full.parameters.at(name).at(i) - wanted[i].get<float>()) < 1e-6, name << " " << i);
    }
    FsdpOptions options = options_of(job);
    options.activation_checkpointing = true;
    for (const std::size_t every : {1u, 2u, 3u}) {
      options.checkpoint_every = every;
      BOOST_TEST((one.train(job, options) == full), one.name << " recomputed, every " << every);
    }
    options = options_of(job);
    options.param_dtype = "bf16";
    const Outcome rounded = one.train(job, options);
    for (std::size_t u = 0; u < updates; ++u) BOOST_TEST(std::abs(rounded.losses[u] / full.losses[u] - 1) < 0.03);
  }
}

// Some strategies add up micro-batches before ranks, so bits are compared for one micro-batch.
BOOST_AUTO_TEST_CASE(all_strategies_and_ways_to_divide_the_model_give_the_same_bits) {
  Job job;
  for (const Case& one : {classifier_case(), clip_case()}) {
    const auto run = [&](const std::string& strategy, auto change) {
      FsdpOptions options = options_of(job, strategy);
      options.gradient_accumulation_steps = 1;
      change(options);
      return one.train(job, options);
    };
    const Outcome full = run("FULL_SHARD", [](FsdpOptions&) {});
    for (const char* const strategy : {"SHARD_GRAD_OP", "NO_SHARD", "optim", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
      BOOST_TEST((run(strategy, [](FsdpOptions&) {}) == full), strategy);
    for (const char* const policy : {"none", "size", "custom"})
      BOOST_TEST((run("FULL_SHARD",
                      [&](FsdpOptions& o) {
                        o.auto_wrap_policy = policy, o.activation_checkpointing = true, o.limit_all_gathers = 3;
                        if (policy == std::string("size")) o.min_num_params = 20;
                        if (policy == std::string("custom")) o.wrap_patterns = {"text.*"};
                      }) == full),
                 policy);
    BOOST_TEST((run("FULL_SHARD", [](FsdpOptions& o) { o.backward_prefetch = "post", o.forward_prefetch = false; }) == full));
  }
}

/// Counts its forward passes.
class Counter final : public Layer {
 public:
  Counter(std::size_t width, int& count) : width_(width), count_(count) {}
  std::size_t inputs() const override { return width_; }
  std::size_t outputs() const override { return width_; }
  void forward(const ForwardPass& pass) const override { ++count_, ops::copy(pass, pass.y, pass.x); }
  void backward(const BackwardPass& pass) const override { ops::copy(pass, pass.dx, pass.dy); }

 private:
  std::size_t width_;
  int& count_;
};

BOOST_AUTO_TEST_CASE(outputs_of_a_layer_need_only_its_tower) {
  Job job;
  const Case one = clip_case();
  FsdpOptions options = options_of(job);
  options.eval_batch_size = 5;
  FullyShardedDataParallel sharded(job, clip(), options);
  one.set_initial(sharded);
  const std::vector<float> all = sharded.predict(for_clip(job, 0));
  BOOST_TEST_REQUIRE(all.size() == 5 * 6);
  const auto columns_of = [&](std::size_t begin) {
    std::vector<float> part;
    for (std::size_t r = 0; r < 5; ++r)
      part.insert(part.end(), all.begin() + static_cast<std::ptrdiff_t>(6 * r + begin),
                  all.begin() + static_cast<std::ptrdiff_t>(6 * r + begin + 3));
    return part;
  };
  const auto pixels = [&](const Batch& batch) {
    BOOST_TEST(batch.sequences() == 5);
    filler(job, 0, batch).write(batch.inputs("pixels"), 0);
  };
  std::vector<std::int32_t> words;
  const auto of_text = [&](const Batch& batch) {
    filler(job, 0, batch).write(batch.tokens("words"), 1, vocabulary);
    words.assign(batch.tokens("words").begin(), batch.tokens("words").end());
  };
  BOOST_TEST((sharded.predict_layer("image.body", pixels) == columns_of(0)));
  BOOST_TEST((sharded.predict_layer("text.body", of_text) == columns_of(3)));
  BOOST_TEST((sharded.predict_layer("text.body.unit", of_text) == columns_of(3)));
  BOOST_TEST(sharded.predict_layer("text.body.norm", of_text).size() == 5 * 6);
  BOOST_TEST(sharded.predict_layer("image.body.norm", pixels).size() == 5 * 4);
  const std::vector<float> embedded = sharded.predict_layer("text.embedding", of_text);
  BOOST_TEST_REQUIRE(embedded.size() == 5 * length * 4);
  const std::vector<float> table = exact(vocabulary * 4, one.golden["weights"].size() - 1);  // the last one by name
  for (std::size_t r = 0; r < words.size(); ++r)
    for (std::size_t c = 0; c < 4; ++c) BOOST_TEST(embedded[4 * r + c] == table[static_cast<std::size_t>(words[r]) * 4 + c]);
  refused("the model has no layer 'text' (it has image.body, text.embedding, text.mean, text.body); give one of these",
          [&] { sharded.predict_layer("text", of_text); });

  int images = 0, texts = 0;
  Sequential model;
  model.towers(
      {{"image", Tower("pixels", numbers(5)).add("in", linear(5, 3)).add("count", std::make_shared<Counter>(3, images))},
       {"text", Tower("words", tokens(), length)
                    .add("in", embedding(vocabulary, 3))
                    .fold()
                    .add("out", linear(21, 3))
                    .add("count", std::make_shared<Counter>(3, texts))}});
  model.add("head", linear(6, 2)).loss(cross_entropy(2));
  FullyShardedDataParallel counted(job, model, {.batch_size = 2});
  counted.predict_layer("text.out", of_text);
  BOOST_TEST((images == 0 && texts == 0));
  counted.predict_layer("text.count", of_text);
  BOOST_TEST((images == 0 && texts == 1));
  counted.predict_layer("image.count", [&](const Batch& batch) { filler(job, 0, batch).write(batch.inputs("pixels"), 0); });
  BOOST_TEST((images == 1 && texts == 1));
}

BOOST_AUTO_TEST_CASE(gradients_of_an_input) {
  Job job;
  const Case one = classifier_case();
  FullyShardedDataParallel sharded(job, classifier(), options_of(job));
  one.set_initial(sharded);
  const double before = sharded.evaluate(for_classifier(job, 0));
  for (const auto& [input, numbers_of_row, at] :
       {std::tuple{"pixels", std::size_t{5}, std::size_t{3}}, {"more", std::size_t{6}, std::size_t{10}}}) {
    const auto with = [&, name = std::string(input), place = at](float more) {
      return sharded.evaluate([&](const Batch& batch) {
        for_classifier(job, 0)(batch);
        if (job.rank() == job.size() - 1) batch.inputs(name)[place] += more;
      });
    };
    const std::vector<float> gradients = sharded.input_gradients(for_classifier(job, 0), input);
    BOOST_TEST_REQUIRE(gradients.size() == rows / static_cast<std::size_t>(job.size()) * numbers_of_row);
    const double difference = (with(0.01f) - with(-0.01f)) / 0.02;
    if (job.rank() == job.size() - 1) BOOST_TEST(std::abs(static_cast<double>(gradients[at]) - difference) < 3e-5, input);
    BOOST_TEST(std::abs(difference) > 1e-4, input);
  }
  BOOST_TEST(sharded.evaluate(for_classifier(job, 0)) == before);
  for (const auto& [input, text] : {std::pair{"words", "the input 'words' is integers, which have no gradient"},
                                    {"", "the model has several inputs (pixels, words, more); name one"},
                                    {"pixel", "the model has no input 'pixel' (it has pixels, words, more)"}})
    refused(text, [&, name = std::string(input)] { sharded.input_gradients(for_classifier(job, 0), name); });
}

/// The difference of two indices of a row.
class Difference : public Layer {
 public:
  std::size_t inputs() const override { return 2; }
  std::size_t outputs() const override { return 1; }
  bool takes_tokens() const override { return true; }
  void forward(const ForwardPass& pass) const override {
    BOOST_TEST(pass.T == 2);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      pass.y.set(r, 0, static_cast<float>(pass.tokens[2 * r] - pass.tokens[2 * r + 1]) / 8);
  }
  void backward(const BackwardPass&) const override { BOOST_TEST(false); }
};
/// Declares memory that a layer of tokens does not get.
struct Saving final : Difference {
  std::size_t saved() const override { return 1; }
};
struct SavingByBatch final : Difference {
  MemorySizes sizes(const BatchSizes& batch) const override { return {.saved_floats = batch.B}; }
};

// Towers with rows for each position, a parameter of two towers, indices, a frozen tower, and a checkpoint.
BOOST_AUTO_TEST_CASE(other_towers) {
  Job job;
  Sequential model;
  model.towers({{"frozen", Tower("x", numbers(3), 2).add("linear", linear(3, 2))},
                {"a", Tower("a", tokens(), 2).add("table", embedding(vocabulary, 3)).add("out", linear(3, 2))},
                {"pair", Tower("pair", tokens(2, 9), 2).add("difference", std::make_shared<Difference>())},
                {"b", Tower("b", tokens(), 2).add("table", embedding(vocabulary, 3)).add("repeat", repeat(2, [](std::size_t) {
                                                                                           return linear(3, 3);
                                                                                         }))}});
  model.add("block", transformer_block(8, {.heads = 2})).add("head", linear(8, 1)).tie("b.table.weight", "a.table.weight");
  model.loss(mean_squared_error(1));
  const auto fill = [&](const Batch& batch) {
    const Filler from = filler(job, 0, batch);
    from.write(batch.inputs("x"), 0), from.write(batch.tokens("a"), 1, vocabulary),
        from.write(batch.tokens("b"), 2, vocabulary);
    from.write(batch.tokens("pair"), 3, 9), from.write(batch.targets(), 4);
    BOOST_TEST((batch.tokens("pair").size() == batch.sequences() * 4 && batch.targets().size() == batch.sequences() * 2));
  };
  const auto train = [&](const std::string& strategy, bool recomputed) {
    FsdpOptions options = options_of(job, strategy);
    options.sequence_length = 2, options.gradient_accumulation_steps = 1, options.freeze = {"frozen.*"};
    options.activation_checkpointing = recomputed;
    FullyShardedDataParallel sharded(job, model, options);
    Outcome outcome;
    for (int i = 0; i < 3; ++i) outcome.losses.push_back(sharded.step(0.001, fill).loss);
    BOOST_TEST(outcome.losses.back() < outcome.losses.front());
    outcome.parameters = parameters_of(sharded);
    BOOST_TEST(sharded.predict_layer("b.repeat.1", fill).size() == rows / static_cast<std::size_t>(job.size()) * 6);
    BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
    return outcome;
  };
  const Outcome full = train("FULL_SHARD", false);
  BOOST_TEST((train("FULL_SHARD", true) == full));
  for (const char* const strategy : {"SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"})
    BOOST_TEST((train(strategy, false) == full), strategy);

  // A step of plain SGD shows the gradient.
  FsdpOptions options = options_of(job);
  options.sequence_length = 2, options.gradient_accumulation_steps = 1, options.momentum = {};
  FullyShardedDataParallel plain(job, model, options), stepped(job, model, options);
  Parameters before = parameters_of(plain);
  const auto set = [&](const std::string& name, std::size_t i, float more) {
    std::vector<float> values = before[name];
    if (job.rank() == 0) values[i] += more;
    plain.set_parameter(name, values);
  };
  const auto loss_with = [&](const std::string& name, std::size_t i, float more) {
    set(name, i, more);
    const double loss = plain.evaluate(fill);
    set(name, i, 0);
    return loss;
  };
  stepped.step(1e-3, fill);
  const Parameters after = parameters_of(stepped);
  for (const char* const name : {"frozen.linear.weight", "a.table.weight", "a.out.weight", "b.repeat.0.bias", "head.weight"}) {
    double most = 0;
    const auto gradient = [&](std::size_t i) { return (before[name][i] - after.at(name)[i]) / 1e-3f; };
    for (std::size_t i = 1; job.rank() == 0 && i < before[name].size(); ++i)
      if (std::abs(gradient(i)) > std::abs(gradient(static_cast<std::size_t>(most)))) most = static_cast<double>(i);
    const auto i = static_cast<std::size_t>(job.sum(most));
    const double difference = (loss_with(name, i, 1e-3f) - loss_with(name, i, -1e-3f)) / 2e-3;
    if (job.rank() == 0)
      BOOST_TEST(std::abs(static_cast<double>(gradient(i)) / difference - 1) < 0.01,
                 name << " " << gradient(i) << " " << difference);
  }

  options.momentum = 0.9;
  const std::filesystem::path folder = new_folder("api-towers", "checkpoint");
  FullyShardedDataParallel first(job, model, options), second(job, model, options);
  first.step(0.1, fill), first.save(folder), second.load(folder);
  BOOST_TEST(first.step(0.1, fill).loss == second.step(0.1, fill).loss);
  BOOST_TEST(first.plan().find("forward join of 'b'") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_is_refused) {
  Job job;
  FullyShardedDataParallel sharded(job, clip(), options_of(job));
  const auto step_refused = [&](const std::string& text, const FillBatch& fill) {
    refused<CollectiveError>(text, [&] { sharded.step(0.1, fill); });
  };
  step_refused("the batch has no input 'pixel' (it has pixels, words); call inputs() with another name",
               [](const Batch& batch) { batch.inputs("pixel"); });
  step_refused("'words' are tokens; call tokens(\"words\")", [](const Batch& batch) { batch.inputs("words"); });
  step_refused("'pixels' are numbers; call inputs(\"pixels\")", [](const Batch& batch) { batch.tokens("pixels"); });
  step_refused("inputs() is called without a name (the batch has the inputs pixels, words); name one",
               [](const Batch& batch) { batch.inputs(); });
  step_refused("tokens() is called without a name (the batch has the inputs pixels, words); name one",
               [](const Batch& batch) { batch.tokens(); });
  step_refused("token 11 at position 2 of input 'words' is out of the model's range (values must be below 11)",
               [&](const Batch& batch) {
                 for_clip(job, 0)(batch);
                 batch.tokens("words")[2] = 11;
               });
  step_refused("does not write 6 of " + std::to_string(5 * rows / static_cast<std::size_t>(job.size())) +
                   " numbers of inputs(\"pixels\") (the first is in row 1, column 2)",
               [&](const Batch& batch) {
                 const std::vector<float> unwritten(batch.inputs("pixels").begin() + 7, batch.inputs("pixels").begin() + 13);
                 for_clip(job, 0)(batch);
                 std::ranges::copy(unwritten, batch.inputs("pixels").begin() + 7);
               });
  step_refused("numbers of tokens(\"words\")",
               [&](const Batch& batch) { filler(job, 0, batch).write(batch.inputs("pixels"), 0); });
  refused<CollectiveError>("inputs() is called without a name", [&] {
    sharded.measure([](std::span<const float>, const Batch& batch) { return static_cast<double>(batch.inputs()[0]); },
                    for_clip(job, 0));
  });
  sharded.step(0.1, for_clip(job, 0));

  const Tower image = Tower("pixels", numbers(5)).add("in", linear(5, 3)),
              text = Tower("words", tokens(), length).add("in", embedding(vocabulary, 3));
  const auto wrong = [&](const std::string& why, const auto& make) { refused(why, make); };
  wrong("numbers() has columns 0", [] { numbers(0); });
  wrong("tokens() has columns -1", [] { tokens(static_cast<std::size_t>(-1)); });
  wrong("Tower() has length 0", [] { Tower("x", numbers(1), 0); });
  wrong("an input of Tower() has no name", [] { Tower("", numbers(1)); });
  wrong("an example has 1073741824 rows of 2 numbers", [] { Tower("x", numbers(2), std::size_t{1} << 30); });
  wrong("layer 'out' of the tower of input 'pixels' takes 4 numbers per row (the rows before it have 3)",
        [&] { Tower(image).add("out", linear(4, 1)); });
  wrong("layer 'in' of the tower of input 'pixels' has a name that is used twice",
        [&] { Tower(image).add("in", linear(3, 1)); });
  wrong("takes no tokens (the input is integers)", [] { Tower("x", tokens()).add("in", linear(1, 1)); });
  wrong("takes tokens (only the first layer of a tower for tokens() can)",
        [] { Tower("x", numbers(1)).add("in", embedding(3, 1)); });
  wrong("is a null pointer", [] { Tower("x", numbers(1)).add("in", nullptr); });
  Sequential model;
  wrong("towers() has no towers", [&] { model.towers({}); });
  wrong("two towers have the name 'image'", [&] { model.towers({{"image", image}, {"image", text}}); });
  wrong("two towers have the input 'pixels'", [&] { model.towers({{"image", image}, {"other", image}}); });
  wrong("the tower of input 'pixels' has no name", [&] { model.towers({{"", image}}); });
  wrong("the tower 'x' has no layers (its input 'x' is integers)", [&] { model.towers({{"x", Tower("x", tokens())}}); });
  model.towers({{"image", image}, {"text", text}});
  wrong("towers() is called twice", [&] { model.towers({{"image", image}}); });
  wrong("towers() is called after add()", [&] { Sequential().add("in", linear(1, 1)).towers({{"image", image}}); });
  const auto build_refused = [&](const std::string& why, Sequential with, const FsdpOptions& options) {
    refused<CollectiveError>(why, [&] { FullyShardedDataParallel(job, with, options); });
  };
  build_refused("the tower 'text' ends with 7 rows for an example, and 'image' with 1",
                Sequential(model).loss(mean_squared_error(6)), {});
  Sequential folded;
  folded.towers({{"image", image}, {"text", Tower(text).fold()}});
  build_refused("layer 'out' takes 3 numbers per row (the towers before it give 24)",
                Sequential(folded).add("out", linear(3, 1)).loss(mean_squared_error(1)), {});
  build_refused("the loss takes 6 numbers per row (the towers before it give 24)",
                Sequential(folded).loss(mean_squared_error(6)), {});
  build_refused("the towers end with 1 rows for an example, and sequence_length is 2",
                Sequential(folded).loss(mean_squared_error(24)), {.sequence_length = 2});
  build_refused("'text.in' has 536870912 examples of 7 rows (a batch has 2^30 rows at most)",
                Sequential(folded).loss(mean_squared_error(24)), {.batch_size = std::size_t{1} << 29});
  build_refused("layer 'more' takes tokens (only the first layer of a model or a tower can)",
                Sequential(folded).add("more", embedding(3, 1)).loss(mean_squared_error(1)), {});
  for (const LayerPtr& saving :
       std::initializer_list<LayerPtr>{std::make_shared<Saving>(), std::make_shared<SavingByBatch>()}) {
    Sequential second;
    second.towers({{"image", image}, {"pair", Tower("pair", tokens(2, 9)).add("in", saving)}}).loss(mean_squared_error(4));
    build_refused("layer 'pair.in' takes tokens and saves numbers", second, {});
    build_refused("layer 'in' takes tokens and saves numbers",
                  Sequential().add("in", saving).add("out", linear(1, 1)).loss(mean_squared_error(1)), {});
  }
  Sequential plain;
  FullyShardedDataParallel of_one(job, plain.add("in", linear(2, 1)).loss(mean_squared_error(1)));
  refused<CollectiveError>("the batch has no input 'x' (it has one without a name); call inputs() with no name",
                           [&] { of_one.step(0.1, [](const Batch& batch) { batch.inputs("x"); }); });
  refused<CollectiveError>("the model has no input 'x' (its only input has no name)",
                           [&] { of_one.input_gradients([](const Batch&) {}, "x"); });
}
