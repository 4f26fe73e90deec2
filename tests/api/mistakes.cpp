// Mistakes in users' layers, losses and batches that a program would not notice: each is an error that names what is wrong.
#include "mpi_main.hpp"

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include <fsdp/fsdp.hpp>

#include "base/format.hpp"
#include "h5/h5.hpp"
#include "support.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

/// What a layer or loss does wrong.
enum class Wrong {
  nothing,
  y,
  dx,
  gradient,
  saved,
  scratch,
  recomputed,
  other_rank,
  losses,
  scale,
  scale_of_parameter,
};

/// y = x * w by columns, with a mistake.
class Careless final : public Layer {
 public:
  explicit Careless(Wrong wrong, DType type = DType::f32) : wrong_(wrong), type_(type) {}
  std::vector<LayerParameter> parameters() const override { return {{"w", {4}, constant(1.0f)}}; }
  std::size_t inputs() const override { return 4; }
  std::size_t outputs() const override { return 4; }
  std::size_t saved() const override { return 4; }
  std::size_t scratch() const override { return 4; }
  bool works_in(DType type) const override { return type == type_; }
  void forward(const ForwardPass& pass) const override {
    float factor = wrong_ == Wrong::other_rank && world().rank() == world().size() - 1 ? 1.5f : 1.0f;
    if (wrong_ == Wrong::recomputed) factor = static_cast<float>(++calls_);
    const Tensor w = pass.parameter(0);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t c = 0; c < 4; ++c) {
        if (wrong_ != Wrong::y || r != 1 || c < 2) pass.y.set(r, c, factor * pass.x.get(r, c) * w.get(0, c));
        if (wrong_ != Wrong::saved) pass.saved.set(r, c, factor * pass.x.get(r, c));
        if (wrong_ == Wrong::scratch) pass.y.set(r, c, pass.y.get(r, c) + pass.scratch.get(r, c));
      }
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor w = pass.parameter(0), d_w = pass.gradient(0);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t c = 0; c < 4; ++c) {
        if (wrong_ != Wrong::dx) pass.dx.set(r, c, pass.dy.get(r, c) * w.get(0, c));
        if (d_w && wrong_ != Wrong::gradient) d_w.floats()[c] += pass.dy.get(r, c) * pass.saved.get(r, c);
      }
  }

 private:
  const Wrong wrong_;
  const DType type_;
  mutable int calls_ = 0;
};

class CarelessLoss final : public Loss {
 public:
  explicit CarelessLoss(Wrong wrong) : wrong_(wrong) {}
  std::vector<LayerParameter> parameters() const override { return {{"v", {1}, constant(1.0f)}}; }
  std::size_t inputs() const override { return 4; }
  bool takes_labels() const override { return true; }
  void check_batch(std::size_t B, std::size_t T) const override {
    if (B * T > 4) throw UserError("more than 4 rows");
  }
  void evaluate(const LossPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      if (wrong_ != Wrong::losses) pass.losses[r] = pass.x.get(r, 0);
      for (std::size_t c = 0; pass.dx && wrong_ != Wrong::dx && c < 4; ++c)
        pass.dx.set(r, c, c > 0 ? 0 : wrong_ == Wrong::scale ? 1 : pass.scale);
    }
    if (const Tensor d_v = pass.gradient(0)) d_v.floats()[0] += wrong_ == Wrong::scale_of_parameter ? 4 : 4 * pass.scale;
  }

 private:
  const Wrong wrong_;
};

void fill(const Batch& batch) {
  std::fill(batch.inputs().begin(), batch.inputs().end(), 0.5f);
  std::fill(batch.labels().begin(), batch.labels().end(), 1);
}

/// Trains for two updates.
StepResult train(Sequential model, const FsdpOptions& options = {.batch_size = 2}, const FillBatch& with = fill) {
  FullyShardedDataParallel sharded(model, options);
  sharded.step(1e-2, with);
  return sharded.step(1e-2, with);
}
Sequential around(const LayerPtr& layer, LossPtr loss = cross_entropy(4)) {
  return std::move(Sequential().add("in", linear(4, 4)).add("mine", layer).loss(std::move(loss)));
}

}  // namespace

BOOST_AUTO_TEST_CASE(results_that_are_not_written) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const FsdpOptions options = {.batch_size = 2,
                                 .param_dtype = type == DType::f32    ? "fp32"
                                                : type == DType::bf16 ? "bf16"
                                                                      : "fp16"};
    const auto said = [&](Wrong what, const std::string& text) {
      refused(text, [&] { train(around(std::make_shared<Careless>(what, type)), options); });
    };
    said(Wrong::y,
         "layer 'mine': forward() does not write 2 of 8 numbers of y (the first is in row 1, column 2); write all of y");
    said(Wrong::dx, "layer 'mine': backward() does not write 8 of 8 numbers of dx");
    BOOST_CHECK_NO_THROW(train(around(std::make_shared<Careless>(Wrong::nothing, type)), options));
  }
  refused("layer 'mine': forward() of 'unit' does not write 2 of 8 numbers of y", [] {
    train(around(residual(sequential({{"unit", std::make_shared<Careless>(Wrong::y)}, {"out", linear(4, 4)}}))));
  });
  refused("layer 'mine': backward() of 'unit' does not write 8 of 8 numbers of dx", [] {
    train(around(parallel({{"a", linear(4, 4)}, {"unit", std::make_shared<Careless>(Wrong::dx)}})));
  });
  for (const Wrong what : {Wrong::losses, Wrong::dx})
    refused(format("loss 'loss': evaluate() does not write {} of {} numbers of {}", what == Wrong::dx ? 8 : 2,
                   what == Wrong::dx ? 8 : 2, what == Wrong::dx ? "dx" : "losses"),
            [&] { train(around(linear(4, 4), std::make_shared<CarelessLoss>(what))); });
  BOOST_CHECK_NO_THROW(train(around(linear(4, 4), std::make_shared<CarelessLoss>(Wrong::nothing))));
  refused("loss 'loss': more than 4 rows",
          [] { train(around(linear(4, 4), std::make_shared<CarelessLoss>(Wrong::nothing)), {.batch_size = 5}); });
}

// Each mistake is found under each strategy, the model has not changed, and without it the results are those without checks.
BOOST_AUTO_TEST_CASE(mistakes_that_training_does_not_show) {
  for (const char* const strategy : {"FULL_SHARD", "NO_SHARD"}) {
    const FsdpOptions options = {.batch_size = 2,
                                 .gradient_accumulation_steps = 2,
                                 .sharding_strategy = strategy,
                                 .accumulate_unsharded = true,
                                 .activation_checkpointing = true};
    const auto said = [&](Wrong what, const std::string& text) {
      refused(text, [&] {
        if (what == Wrong::scale || what == Wrong::scale_of_parameter)
          return train(around(linear(4, 4), std::make_shared<CarelessLoss>(what)), options);
        Sequential model;  // the last layer is not recomputed
        model.add("in", linear(4, 4)).add("mine", std::make_shared<Careless>(what)).add("out", linear(4, 4));
        return train(std::move(model.loss(cross_entropy(4))), options);
      });
    };
    said(Wrong::gradient, "layer 'mine': backward() adds nothing to the gradient of 'w'; add to it, or freeze the parameter");
    said(Wrong::saved,
         "layer 'mine': backward() computes the gradient of 'w'[0, 0] from memory of saved or stats that forward() has not "
         "written");
    said(Wrong::scratch, "layer 'mine': forward() computes y[0, 0] from scratch memory that it has not written in this pass");
    said(Wrong::scale, "loss 'loss': evaluate() gives 1 for dx[0, 0] with scale");
    said(Wrong::scale_of_parameter, "loss 'loss': evaluate() gives 4 for the gradient of 'v'[0, 0] with scale");
    said(Wrong::recomputed, "layer 'mine': forward() gives other numbers when it is computed again for backward");
    if (world().size() > 1) said(Wrong::other_rank, "layer 'mine' gives");

    const auto trained = [&](bool checks) {
      FsdpOptions how = options;
      how.check_first_update = checks;
      const Sequential model =
          around(sequential({{"unit", std::make_shared<Careless>(Wrong::nothing)}, {"drop", dropout(4, 0.5)}}));
      FullyShardedDataParallel sharded(model, how);
      for (int i = 0; i < 2; ++i) sharded.step(1e-2, fill);
      return parameters_of(sharded);
    };
    BOOST_TEST((trained(true) == trained(false)));
  }
  Sequential model = around(std::make_shared<Careless>(Wrong::gradient));
  FullyShardedDataParallel sharded(model, {.batch_size = 2});
  const Parameters before = parameters_of(sharded);
  BOOST_CHECK_NO_THROW(sharded.predict(fill));
  for (int i = 0; i < 2; ++i) refused("adds nothing to the gradient of 'w'", [&] { sharded.step(1e-2, fill); });
  BOOST_TEST((parameters_of(sharded) == before));
  BOOST_TEST(sharded.updates() == 0u);
  sharded.freeze({"mine.w"});
  BOOST_CHECK_NO_THROW(sharded.step(1e-2, fill));
  BOOST_TEST((parameters_of(sharded) != before) == (world().rank() == 0));  // other ranks have none
  BOOST_CHECK_NO_THROW(
      train(around(std::make_shared<Careless>(Wrong::gradient)), {.batch_size = 2, .check_first_update = false}));
  refused("layer 'mine': forward() does not write 2 of 8 numbers of y",
          [] { FullyShardedDataParallel(around(std::make_shared<Careless>(Wrong::y)), {.batch_size = 2}).predict(fill); });
  // Each stage is checked once: outputs say nothing about the loss.
  FullyShardedDataParallel by_parts(around(linear(4, 4), std::make_shared<CarelessLoss>(Wrong::losses)), {.batch_size = 2});
  BOOST_CHECK_NO_THROW(by_parts.predict(fill));
  refused("loss 'loss': evaluate() does not write 2 of 2 numbers of losses", [&] { by_parts.evaluate(fill); });
}

BOOST_AUTO_TEST_CASE(batches_that_are_not_written) {
  const FsdpOptions options = {.batch_size = 3, .gradient_accumulation_steps = 2};
  const auto said = [&](const FillBatch& with, const std::string& text) {
    refused(text, [&] { train(around(linear(4, 4)), options, with); });
  };
  said([](const Batch&) {},
       "the function that fills micro-batch 0 does not write 12 of 12 numbers of inputs() (the first is in row 0, column 0); "
       "write all of inputs()");
  said([](const Batch& batch) { std::fill_n(batch.inputs().begin(), 5, 0.5f); },
       "does not write 7 of 12 numbers of inputs() (the first is in row 1, column 1)");
  said([](const Batch& batch) { std::fill(batch.inputs().begin(), batch.inputs().end(), 0.5f); },
       "the function that fills micro-batch 0 does not write 3 of 3 numbers of labels() (the first is in row 0, column 0)");
  said([](const Batch& batch) { fill(batch), batch.labels()[1] += batch.micro_batch() == 0 ? 0 : 77; },
       "label 78 at position 1");
  const FillBatch first_only = [](const Batch& batch) {
    if (batch.micro_batch() == 0) fill(batch);
  };
  said(first_only, "the function that fills micro-batch 1 does not write 12 of 12 numbers of inputs()");
  // Numeric targets that nothing has written are NaN if the loss uses them.
  const auto train_numbers = [&](std::size_t written) {
    train(around(linear(4, 4), mean_squared_error(4)), options, [&](const Batch& batch) {
      std::fill_n(batch.inputs().begin(), 12, 0.5f), std::fill_n(batch.targets().begin(), written, 0.0f);
    });
  };
  refused("(no function has written targets())", [&] { train_numbers(0); });
  refused("the loss is not a number (no function has written targets())", [&] {
    FullyShardedDataParallel(around(linear(4, 4), mean_squared_error(4)), {.batch_size = 3}).evaluate([](const Batch& batch) {
      std::fill_n(batch.inputs().begin(), 12, 0.5f);
    });
  });
  refused("does not write 11 of 12 numbers of targets()", [&] { train_numbers(1); });
  BOOST_CHECK_NO_THROW(train_numbers(12));
  // What an evaluation has written does not count for the first update.
  FullyShardedDataParallel evaluated(around(linear(4, 4)), {.batch_size = 2});
  evaluated.evaluate(fill);
  refused("does not write 2 of 2 numbers of labels()", [&] {
    evaluated.step(1e-2, [](const Batch& batch) { std::fill(batch.inputs().begin(), batch.inputs().end(), 0.5f); });
  });
  // Memory that was written once keeps its numbers, so a program may write what is always the same only once.
  bool is_first = true;
  Sequential model = around(linear(4, 4));
  FullyShardedDataParallel sharded(model, {.batch_size = 2});
  sharded.predict([](const Batch& batch) { std::fill(batch.inputs().begin(), batch.inputs().end(), 0.5f); });
  for (int i = 0; i < 2; ++i)
    sharded.step(1e-2, [&](const Batch& batch) {
      if (is_first) fill(batch);
      is_first = false;
    });
  BOOST_TEST(sharded.updates() == 2u);
}

BOOST_AUTO_TEST_CASE(sizes_that_are_negative) {
  const auto said = [](const std::function<LayerPtr()>& make, const std::string& text) { refused(text, make); };
  const auto minus = static_cast<std::size_t>(-1);
  said([&] { return linear(minus, 2); }, "linear() has in -1 (it must be at least 1, and at most 2^30)");
  said([&] { return linear(2, minus); }, "linear() has out -1");
  said([&] { return relu(minus); }, "relu() has width -1");
  said([&] { return embedding(minus, 2); }, "embedding() has vocabulary -1");
  said([&] { return embedding(0, 2); }, "embedding() has vocabulary 0");
  said([&] { return position_embedding(minus, 2); }, "position_embedding() has positions -1");
  said([&] { return transpose(minus, minus); }, "transpose() has rows -1");
  said([&] { return layer_norm(minus); }, "layer_norm() has width -1");
  said([&] { return multi_head_attention(minus, {.heads = 1}); }, "attention of width -1 with 1 heads");
  said([&] { return multi_head_attention(4, {.heads = minus}); }, "attention of width 4 with -1 heads");
  said([&] { return transformer_block(4, {.heads = 2, .inner = minus}); }, "-1");
  said([&] { return positions(minus, relu(2)); }, "positions() has -1 positions");
  said([&] { return keep_columns(minus, relu(2)); }, "keep_columns() keeps -1 columns");
  said([&] { return select_columns(4, minus, 2); }, "select_columns(4, -1, 2)");
  said([&] { return repeat(minus, [](std::size_t) { return relu(2); }); }, "repeat() has count -1");
  refused("cross_entropy() has width -1", [&] { cross_entropy(minus); });
  refused("mean_squared_error() has width -1", [&] { mean_squared_error(minus); });
  refused("layer 'emb' of parallel() maps 1 token to 4, and layer 'num' 1 to 4 (one takes tokens, the other numbers", [] {
    parallel({{"num", linear(1, 4)}, {"emb", embedding(8, 4)}});
  });
}

BOOST_AUTO_TEST_CASE(other_wrong_uses) {
  const auto minus = static_cast<std::size_t>(-1);
  refused("batch_size '-1' is not accepted", [&] { train(around(linear(4, 4)), {.batch_size = minus}); });
  refused("TransformerDescription() has a size of -1",
          [&] { estimate_memory(TransformerDescription("gpt2").width(minus), {}, 1); });
  struct Throwing final : Layer {
    std::size_t inputs() const override { return 4; }
    std::size_t outputs() const override { return 4; }
    void forward(const ForwardPass&) const override { throw 7; }
    void backward(const BackwardPass&) const override {}
  };
  if (world().size() == 1)  // else the job ends
    refused("layer 'mine' threw an exception that is no std::exception", [] { train(around(std::make_shared<Throwing>())); });
  Sequential model = around(linear(4, 1), mean_squared_error(1));
  const auto folder = new_folder("api-mistakes", "uses");
  std::ofstream(folder / "file") << "no checkpoint";
  FullyShardedDataParallel sharded(model, {.batch_size = 2});
  refused("file' is a file (checkpoints are in a folder)", [&] { sharded.restore(folder / "file"); });
  refused("trace_updates", [&] { MetricsLog(sharded, {.trace_updates = 9}); });
  std::int32_t inputs[2] = {}, labels[2] = {1, 0};
  const NamedInput input{"", {}};
  const Batch batch(0, 2, {&input, 1}, inputs, labels, true);
  const float nan = std::numeric_limits<float>::quiet_NaN(), outputs[4] = {0, 1, nan, nan};
  BOOST_TEST(accuracy(outputs, batch) == 1);  // NaN is no answer
  refused("accuracy() has 1 outputs for a label 1", [&] { accuracy(std::span(outputs).first(2), batch); });
}

// The names of <cmath> stay those of <cmath> in a program that uses the whole namespace, and layers take any integer.
BOOST_AUTO_TEST_CASE(names_of_the_standard_library) {
  const int width = 4;
  const long more = 4;
  BOOST_TEST(tanh(0.5) == std::tanh(0.5));
  BOOST_TEST(tanh(0.5f) == std::tanh(0.5f), boost::test_tools::tolerance(1e-6));
  BOOST_TEST(exp(0.5) + log(2.0) + sqrt(2.0) + fabs(-1.0) > 0);
  BOOST_TEST(tanh(width)->outputs() == 4u);
  BOOST_TEST(tanh(more)->outputs() == 4u);
  BOOST_TEST(tanh(std::size_t{4})->outputs() == 4u);
  refused("tanh() has width -1", [] { tanh(-1); });
}

// A file of another program has a dataset for each parameter, under its name.
BOOST_AUTO_TEST_CASE(plain_files_are_loaded_by_names) {
  const auto folder = new_folder("api-mistakes", "plain");
  const auto write = [&](const std::string& name, const std::function<void(h5::File&)>& work) {
    if (world().rank() == 0) {
      h5::File file = h5::File::create(folder / name);
      work(file);
      file.close();
    }
    world().barrier();
    return folder / name;
  };
  const auto add = [](h5::File& file, const std::string& name, const Shape& shape, float first) {
    std::vector<float> numbers(numel(shape));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = first + static_cast<float>(i);
    file.create_dataset(name, shape).write({0, numbers.size()}, numbers.data());
  };
  const Sequential model = std::move(Sequential().add("a", linear(4, 3)).loss(cross_entropy(3)));
  FullyShardedDataParallel sharded(model, {.batch_size = 2});
  sharded.load_full(write("right.h5", [&](h5::File& file) { add(file, "a.weight", {3, 4}, 1), add(file, "a.bias", {3}, -5); }));
  const Parameters loaded = parameters_of(sharded);
  if (world().rank() == 0) {
    BOOST_TEST(loaded.at("a.weight").back() == 12);
    BOOST_TEST(loaded.at("a.bias").front() == -5);
  }
  refused("a.bias: it is missing", [&] {
    sharded.load_full(write("missing.h5", [&](h5::File& file) { add(file, "a.weight", {3, 4}, 1); }));
  });
  refused("a.weight: its shape is [4, 3] in the source, but [3, 4] in the model", [&] {
    sharded.load_full(write("shape.h5", [&](h5::File& file) {
      add(file, "a.weight", {4, 3}, 1), add(file, "a.bias", {3}, 1);
    }));
  });
  refused("b.bias: the model does not have this tensor", [&] {
    sharded.load_full(write("more.h5", [&](h5::File& file) {
      add(file, "a.weight", {3, 4}, 1), add(file, "a.bias", {3}, 1), add(file, "b.bias", {3}, 1);
    }));
  });
  BOOST_TEST((parameters_of(sharded) == loaded));  // nothing has changed
}
