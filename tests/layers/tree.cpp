// The tree of layers: values of compositions, tied parameters, layers of repeat(), outputs of named layers, units by patterns.
#include "mpi_main.hpp"

#include <cmath>
#include <filesystem>
#include <map>

#include <fsdp/fsdp.hpp>

#include "api/support.hpp"
#include "gated_convolution.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t width = 6, examples = 4;

void fill(const Batch& batch) {
  const float shift = 0.3f * static_cast<float>(world().rank()) + 0.1f * static_cast<float>(batch.micro_batch());
  for (std::size_t i = 0; i < batch.inputs().size(); ++i) batch.inputs()[i] = std::sin(static_cast<float>(i) + shift);
  for (std::size_t i = 0; i < batch.targets().size(); ++i) batch.targets()[i] = std::cos(static_cast<float>(i) * 0.7f + shift);
}

struct Outcome {
  std::vector<double> losses;
  Parameters parameters;  // on rank 0
  bool operator==(const Outcome&) const = default;
};

Outcome trained(const Sequential& model, FsdpOptions options, const FillBatch& fill_batch = fill) {
  options.shard_group_size = options.sharding_strategy.find("HYBRID") != std::string::npos ? world().size() : 0;
  Job job;
  FullyShardedDataParallel sharded(job, model, options);
  Outcome outcome;
  for (int i = 0; i < 3; ++i) outcome.losses.push_back(sharded.step(0.1, fill_batch).loss);
  outcome.parameters = parameters_of(sharded);
  BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  return outcome;
}

/// y = W tanh-like(W x): one matrix, used twice. check_gradients() shows that its gradient is right.
class Twice final : public Layer {
 public:
  std::vector<LayerParameter> parameters() const override { return {{"weight", {width, width}, normal(1 / std::sqrt(6.0f))}}; }
  std::size_t inputs() const override { return width; }
  std::size_t outputs() const override { return width; }
  std::size_t saved() const override { return 2 * width; }
  std::size_t scratch() const override { return width; }
  void forward(const ForwardPass& pass) const override {
    const Tensor once = pass.saved.part(0, width), gelu = pass.saved.part(width, width);
    ops::linear(pass, pass.x, pass.parameter(0), {}, once);
    ops::gelu(pass, once, gelu);
    ops::linear(pass, gelu, pass.parameter(0), {}, pass.y);
  }
  void backward(const BackwardPass& pass) const override {
    const Tensor once = pass.saved.part(0, width), gelu = pass.saved.part(width, width), d = pass.scratch.part(0, width);
    ops::linear_backward(pass, gelu, pass.parameter(0), pass.dy, d, pass.gradient(0), {});
    ops::gelu_backward(pass, once, d, d);
    ops::linear_backward(pass, pass.x, pass.parameter(0), d, pass.dx, pass.gradient(0), {});
  }
};

FsdpOptions options_of(const std::string& strategy) {
  FsdpOptions options;
  options.batch_size = examples, options.sharding_strategy = strategy;
  options.optimizer = "sgd";
  return options;
}

const std::vector<std::string> strategies = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "optim", "HYBRID_SHARD"};

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

BOOST_AUTO_TEST_CASE(tied_parameters_are_one) {
  const Outcome whole =
      trained(Sequential().add("up", std::make_shared<Twice>()).loss(mean_squared_error(width)), options_of("FULL_SHARD"));
  BOOST_TEST(whole.losses.back() < whole.losses.front());
  const auto up = [] { return linear(width, width, false); };
  Sequential in_stages, in_one;
  in_stages.add("up", up()).add("gelu", gelu(width)).add("down", up()).loss(mean_squared_error(width));
  in_stages.tie("down.weight", "up.weight");
  in_one.add("net", sequential({{"up", up()}, {"gelu", gelu(width)}, {"down", up()}})).loss(mean_squared_error(width));
  in_one.tie("net.down.weight", "net.up.weight");
  for (const std::string& strategy : strategies)
    for (const bool recomputes : {false, true}) {
      FsdpOptions options = options_of(strategy);
      options.activation_checkpointing = recomputes;
      BOOST_TEST_CONTEXT(strategy) {
        BOOST_TEST((trained(in_stages, options) == whole));
        BOOST_TEST((trained(in_one, options).losses == whole.losses));
      }
    }
  if (world().rank() == 0) BOOST_TEST(whole.parameters.size() == 1u);
}

// One parameter at both ends and one in two blocks, beside others; several micro-batches; every strategy and wrap policy.
BOOST_AUTO_TEST_CASE(tied_parameters_of_a_model_of_tokens) {
  constexpr std::size_t vocabulary = 11;
  Sequential model;
  model.add("embedding", embedding(vocabulary, width))
      .add(
          "blocks",
          repeat(3,
                 [](std::size_t) {
                   return residual(sequential(
                       {{"norm", layer_norm(width)}, {"up", linear(width, 9)}, {"gelu", gelu(9)}, {"down", linear(9, width)}}));
                 }))
      .add("head", linear(width, vocabulary, false))
      .loss(cross_entropy(vocabulary));
  model.tie("head.weight", "embedding.weight").tie("blocks.2.up.weight", "blocks.0.up.weight");
  const auto tokens = [](const Batch& batch) {
    for (std::size_t r = 0; r < batch.tokens().size(); ++r) {
      batch.tokens()[r] =
          static_cast<int>((r * r + static_cast<std::size_t>(world().rank()) + 3 * batch.micro_batch()) % vocabulary);
      batch.labels()[r] = static_cast<int>((r + 1) % vocabulary);
    }
  };
  std::map<std::size_t, Outcome> of_count;
  for (const std::size_t micro_batches : {1, 3}) {
    if (micro_batches > 1 && world().size() > 2) continue;  // sums over ranks and micro-batches have another order
    for (const std::string& strategy : strategies)
      for (const std::string policy : {"layer", "size", "none", "custom"}) {
        FsdpOptions options = options_of(strategy);
        options.optimizer = "adamw", options.gradient_accumulation_steps = micro_batches;
        options.auto_wrap_policy = policy;
        if (policy == "size") options.min_num_params = 60;
        if (policy == "custom") options.wrap_patterns = {"blocks.*.up", "blocks.*.down"};
        const Outcome outcome = trained(model, options, tokens);
        const Outcome& first = of_count.try_emplace(micro_batches, outcome).first->second;
        BOOST_TEST_CONTEXT(strategy << ", " << policy << ", " << micro_batches) {
          BOOST_TEST(outcome.losses.front() == first.losses.front());
          if (micro_batches == 1) BOOST_TEST((outcome == first));
          for (const auto& [name, values] : first.parameters)
            for (std::size_t i = 0; i < values.size(); ++i)
              BOOST_REQUIRE_SMALL(outcome.parameters.at(name)[i] - values[i], 1e-5f);
        }
      }
  }
  if (world().rank() > 0) return;
  const Parameters& all = of_count.at(1).parameters;
  BOOST_TEST(!all.contains("head.weight"));
  BOOST_TEST(!all.contains("blocks.2.up.weight"));
  BOOST_TEST(all.contains("blocks.2.up.bias"));
}

// A first layer that is not embedding() uses scratch memory in its forward pass.
BOOST_AUTO_TEST_CASE(parallel_layers_of_tokens_are_trained) {
  constexpr std::size_t vocabulary = 11;
  for (const Join join : {Join::sum, Join::concatenate}) {
    const std::size_t other = join == Join::sum ? 2 : width;
    Sequential model;
    model.add("in", parallel({{"a", embedding(vocabulary, 2)}, {"b", embedding(vocabulary + 2, other)}}, join));
    model.add("out", linear(join == Join::sum ? 2 : 2 + width, vocabulary)).loss(cross_entropy(vocabulary));
    const auto tokens = [](const Batch& batch) {
      for (std::size_t r = 0; r < batch.tokens().size(); ++r)
        batch.tokens()[r] = batch.labels()[r] = static_cast<int>((r + static_cast<std::size_t>(world().rank())) % vocabulary);
    };
    const Outcome first = trained(model, options_of("NO_SHARD"), tokens);
    BOOST_TEST(first.losses.back() < first.losses.front());
    for (const std::string& strategy : strategies) BOOST_TEST((trained(model, options_of(strategy), tokens) == first));
    Job job;
    FullyShardedDataParallel sharded(job, model, options_of("FULL_SHARD"));
    const std::vector<float> found = sharded.predict_layer("in", tokens);
    Parameters tables = parameters_of(sharded);
    if (world().rank() > 0) continue;
    for (std::size_t r = 0; r < examples; ++r) {
      const float* const row = found.data() + r * found.size() / examples;
      const float *const a = &tables["in.a.weight"][r % vocabulary * 2], *const b =
                                                                             &tables["in.b.weight"][r % vocabulary * other];
      if (join == Join::sum)
        BOOST_TEST(row[1] == a[1] + b[1]);
      else
        BOOST_TEST((row[1] == a[1] && row[2] == b[0] && row[1 + other] == b[other - 1]));
    }
  }
}

namespace {

/// y = table[token] * scale: backward reads both parameters.
class ScaledEmbedding final : public Layer {
 public:
  std::vector<LayerParameter> parameters() const override {
    return {{"table", {11, width}, normal(1)}, {"scale", {width}, normal(1)}};
  }
  std::size_t inputs() const override { return 1; }
  std::size_t outputs() const override { return width; }
  bool takes_tokens() const override { return true; }
  std::size_t vocabulary() const override { return 11; }
  void forward(const ForwardPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t c = 0; c < width; ++c) pass.y.row(r)[c] = row(pass, r)[c] * pass.parameter(1).floats()[c];
  }
  void backward(const BackwardPass& pass) const override {
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t c = 0; c < width; ++c) {
        const float dy = pass.dy.row(r)[c];
        pass.gradient(0).row(static_cast<std::size_t>(pass.tokens[r]))[c] += dy * pass.parameter(1).floats()[c];
        pass.gradient(1).floats()[c] += dy * row(pass, r)[c];
      }
  }

 private:
  static const float* row(const Pass& pass, std::size_t r) {
    return pass.parameter(0).row(static_cast<std::size_t>(pass.tokens[r]));
  }
};

/// The squares of x, weighted by a parameter.
class WeightedSquares final : public Loss {
 public:
  std::vector<LayerParameter> parameters() const override { return {{"weight", {1, 9 * width}, normal(1)}}; }
  std::size_t inputs() const override { return width; }
  bool takes_labels() const override { return false; }
  void evaluate(const LossPass& pass) const override {
    const float* const weight = pass.parameter(0).floats();
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      const float* const x = pass.x.row(r);
      pass.losses[r] = 0;
      for (std::size_t c = 0; c < width; ++c) pass.losses[r] += weight[c] * weight[c] * x[c] * x[c];
      for (std::size_t c = 0; c < width && pass.dx; ++c) {
        pass.dx.row(r)[c] = pass.scale * 2 * weight[c] * weight[c] * x[c];
        pass.gradient(0).floats()[c] += pass.scale * 2 * weight[c] * x[c] * x[c];
      }
    }
  }
};

}  // namespace

// The parameters of the loss are gathered into the memory of those of the first layer, which backward gathers again.
BOOST_AUTO_TEST_CASE(the_first_layer_reads_its_parameters_in_backward) {
  Sequential model;
  model.add("in", std::make_shared<ScaledEmbedding>()).add("mid", linear(width, width)).add("out", linear(width, width));
  model.loss(std::make_shared<WeightedSquares>());
  const auto tokens = [](const Batch& batch) {
    for (std::size_t r = 0; r < batch.tokens().size(); ++r) batch.tokens()[r] = static_cast<int>(3 * r % 11);
  };
  const auto with = [&](const std::string& strategy) {
    Job job;
    FsdpOptions options = options_of(strategy);
    options.shard_group_size = strategy == "HYBRID_SHARD" ? world().size() : 0;
    FullyShardedDataParallel sharded(job, model, options);
    for (int i = 0; i < 2; ++i) sharded.step(1e-3, tokens);
    return parameters_of(sharded);
  };
  const Parameters first = with("NO_SHARD");
  for (const std::string& strategy : strategies) BOOST_TEST((with(strategy) == first), strategy);
}

BOOST_AUTO_TEST_CASE(outputs_of_named_layers) {
  Sequential model;
  model.add("in", parallel({{"wide", linear(width, 5)}, {"thin", select_columns(width, 1, 2)}}, Join::concatenate))
      .add("blocks", repeat(2, [](std::size_t) { return keep_columns(3, linear(4, 4)); }))
      .add("out", positions(7, linear(1, 3)))
      .loss(mean_squared_error(21));
  for (const std::string& strategy : strategies) {
    Job job;
    FsdpOptions options = options_of(strategy);
    options.shard_group_size = strategy == "HYBRID_SHARD" ? world().size() : 0;
    FullyShardedDataParallel sharded(job, model, options);
    for (int i = 0; i < 3; ++i) sharded.step(0.05, fill);
    std::map<std::string, std::vector<float>> w;
    for (const auto& [name, values] : parameters_of(sharded)) w[name] = values;
    std::vector<float> x;
    sharded.measure(
        [&](std::span<const float>, const Batch& batch) { return x.assign(batch.inputs().begin(), batch.inputs().end()), 0; },
        fill);
    const std::vector<float> in = sharded.predict_layer("in", fill), first = sharded.predict_layer("blocks.0", fill),
                             second = sharded.predict_layer("blocks.1", fill), out = sharded.predict_layer("out", fill);
    BOOST_TEST(in.size() == examples * 7);
    BOOST_TEST(second.size() == examples * 7);
    BOOST_TEST(out.size() == examples * 21);
    BOOST_TEST((out == sharded.predict(fill)));
    if (world().rank() > 0) continue;  // rank 0 has the parameters
    const auto near = [](float a, double b) { BOOST_REQUIRE_SMALL(static_cast<double>(a) - b, 1e-5); };
    const auto product = [&](const std::string& layer, const float* from, std::size_t n, std::size_t o) {
      double sum = static_cast<double>(w.at(layer + ".bias")[o]);
      for (std::size_t i = 0; i < n; ++i)
        sum += static_cast<double>(from[i]) * static_cast<double>(w.at(layer + ".weight")[o * n + i]);
      return sum;
    };
    for (std::size_t r = 0; r < examples; ++r) {
      for (std::size_t o = 0; o < 5; ++o) near(in[r * 7 + o], product("in.wide", &x[r * width], width, o));
      for (std::size_t o = 0; o < 2; ++o) near(in[r * 7 + 5 + o], static_cast<double>(x[r * width + 1 + o]));
      for (std::size_t o = 0; o < 4; ++o) near(first[r * 7 + o], product("blocks.0", &in[r * 7], 4, o));
      for (std::size_t o = 4; o < 7; ++o) near(second[r * 7 + o], static_cast<double>(in[r * 7 + o]));
      for (std::size_t o = 0; o < 21; ++o) near(out[r * 21 + o], product("out", &second[r * 7 + o / 3], 1, o % 3));
    }
  }
  Job job;
  FullyShardedDataParallel sharded(job, model, options_of("FULL_SHARD"));
  BOOST_TEST(refusal([&] { sharded.predict_layer("blocks", fill); }) ==
             "the model has no layer 'blocks' (it has in, blocks.0, blocks.1, out); give one of these");
  BOOST_TEST(refusal([&] { sharded.predict_layer("", fill); }) == "the name of the layer is empty; give a name");
}

BOOST_AUTO_TEST_CASE(units_by_patterns) {
  const auto block = [](std::size_t) { return residual(sequential({{"up", linear(width, 9)}, {"down", linear(9, width)}})); };
  Sequential model;
  model.add("in", linear(width, width))
      .add("blocks", repeat(3, block))
      .add("relu", relu(width))
      .loss(mean_squared_error(width));
  const auto plan_of = [&](const std::vector<std::string>& patterns) {
    Job job;
    FsdpOptions options = options_of("FULL_SHARD");
    options.auto_wrap_policy = "custom", options.wrap_patterns = patterns;
    return FullyShardedDataParallel(job, model, options).plan();
  };
  const Outcome same = trained(model, options_of("FULL_SHARD"));
  for (const std::vector<std::string>& patterns :
       {std::vector<std::string>{"blocks.[01]", "blocks.2"}, {"*.up", "*.down"}, {"in"}}) {
    FsdpOptions options = options_of("FULL_SHARD");
    options.auto_wrap_policy = "custom", options.wrap_patterns = patterns;
    BOOST_TEST((trained(model, options) == same));
  }
  // Titles have the user's names.
  const std::string titled = plan_of({"blocks.*"});
  for (const char* title : {"forward inputs ", "forward in ", "forward relu ", "loss and its gradient ", "backward blocks.1 "})
    BOOST_TEST(titled.find(title) != std::string::npos, title);
  for (const char* title : {"embedding", "head", " block "}) BOOST_TEST(titled.find(title) == std::string::npos, title);
  // A unit for each outermost layer that matches.
  const auto gathers = [&](const std::vector<std::string>& patterns, const std::string& unit) {
    return plan_of(patterns).find(" optimizer " + unit + " ") != std::string::npos;
  };
  for (const char* unit : {"blocks.0", "blocks.1", "blocks.2"}) BOOST_TEST(gathers({"blocks.*"}, unit), unit);
  BOOST_TEST(!gathers({"blocks.*"}, "blocks.0.up"));
  BOOST_TEST(gathers({"blocks.*.up"}, "blocks.1.up"));
  for (const std::string pattern : {"blocks.7", "relu"})  // not there, and without parameters
    BOOST_TEST(refusal([&] {
                 plan_of({pattern});
               }).starts_with("wrap_patterns '" + pattern + "' matches no module with parameters (this model has "));
  const std::string without = refusal([&] { plan_of({}); });
  BOOST_TEST(without.find("wrap_patterns") != std::string::npos, without);
}

BOOST_AUTO_TEST_CASE(trees_that_cannot_be) {
  BOOST_TEST(refusal([] { positions(std::size_t{1} << 63, linear(2, 2)); }).find("it is from 1 to 2^30") != std::string::npos);
  const auto built = [](const Sequential& model) { return refusal([&] { estimate_memory(model, {}, 2); }); };
  const LayerPtr one = linear(3, 3), harmless = relu(3);
  const auto with = [&](const NamedLayers& layers) {
    Sequential model;
    for (const auto& [name, layer] : layers) model.add(name, layer);
    return model.loss(mean_squared_error(3));
  };
  BOOST_TEST(built(with({{"a", one}, {"r", harmless}, {"s", harmless}})) == "nothing");
  BOOST_TEST(built(with({{"a", one}, {"b", residual(sequential({{"c", one}}))}})) ==
             "layers 'a' and 'b.c' are one object (each would have parameters of its own); make two objects, and share "
             "parameters by Sequential::tie() if they should be the same");
  const auto tied = [&](std::string name, std::string same_as) {
    Sequential model = with({{"a", linear(3, 3)}, {"b", linear(3, 4)}, {"c", linear(4, 3)}});
    return built(model.tie(std::move(name), std::move(same_as)));
  };
  BOOST_TEST(tied("c.bias", "a.bias") == "nothing");
  BOOST_TEST(tied("b.weight", "a.weight") ==
             "tie() makes 'b.weight' [4, 3] the parameter 'a.weight' [3, 3]; make the shapes equal");
  BOOST_TEST(tied("a.bias", "c.bias").starts_with("tie() makes 'a.bias' the parameter 'c.bias' (no earlier layer has that)"));
  BOOST_TEST(tied("d.bias", "a.bias") == "tie() names the parameter 'd.bias' (this model has a.weight, ...); correct the name");
  BOOST_TEST(built(with({{"a", linear(3, 4)}, {"b", linear(3, 3)}})) ==
             "layer 'b' takes 3 numbers per row (layer 'a' before it gives 4); make them equal");
  BOOST_TEST(built(with({{"a", linear(3, 4)}})) ==
             "the loss takes 3 numbers per row (layer 'a' before it gives 4); make them equal");
}

BOOST_AUTO_TEST_CASE(a_checkpoint_of_another_tree_says_the_first_difference) {
  const fs::path folder = fs::path("api-tree") / std::to_string(world().size());
  if (world().rank() == 0) fs::remove_all(folder);
  world().barrier();
  const auto model = [](const char* second, std::size_t inner) {
    Sequential of;
    of.add("net", sequential({{"up", linear(width, inner)}, {second, linear(inner, width)}}));
    return of.loss(mean_squared_error(width));
  };
  Job job;
  FullyShardedDataParallel(job, model("down", 4), options_of("FULL_SHARD")).save(folder);
  const auto loading = [&](const Sequential& of) {
    FullyShardedDataParallel sharded(job, of, options_of("FULL_SHARD"));
    return refusal([&] { sharded.load(folder); });
  };
  BOOST_TEST(loading(model("down", 4)) == "nothing");
  const std::string renamed = loading(model("out", 4)), resized = loading(model("down", 5));
  BOOST_TEST(renamed.find("net.out.weight") != std::string::npos, renamed);
  BOOST_TEST(resized.find("net.up.weight") != std::string::npos, resized);
  Sequential tied = model("down", width);
  tied.tie("net.down.weight", "net.up.weight");
  const std::string with_ties = loading(tied);
  BOOST_TEST(with_ties.find("net.") != std::string::npos, with_ties);
}

BOOST_AUTO_TEST_CASE(ranks_with_other_trees_are_told) {
  Job job;
  if (job.size() == 1) return;
  const bool odd = job.rank() == 1;
  const auto with = [&](const std::function<void(Sequential&)>& change) {
    Sequential model;
    change(model);
    return refusal([&] { FullyShardedDataParallel(job, model.loss(mean_squared_error(3)), {.batch_size = 2}); });
  };
  const std::string of_inner = with([&](Sequential& model) {
    model.add("net", sequential({{"a", linear(3, 3)}, {"b", odd ? gelu(3) : relu(3)}}));
  });
  BOOST_TEST(of_inner.find("'layer net.b of") != std::string::npos, of_inner);
  const std::string of_ties = with([&](Sequential& model) {
    model.add("a", linear(3, 3)).add("b", linear(3, 3));
    if (odd) model.tie("b.bias", "a.bias");
  });
  BOOST_TEST(of_ties.find("b.bias") != std::string::npos, of_ties);
}
