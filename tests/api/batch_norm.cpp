// Layers with state. batch_norm() gives the numbers of PyTorch's SyncBatchNorm at any number of ranks and micro-batches, and
// the same bits under all strategies; states are saved, resumed, frozen and left alone by evaluations and skipped updates.
#include "mpi_main.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

#include "support.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t rows = 12, features = 5, width = 6, outputs = 3, micro_batches = 2, updates = 6;
using Kind = LayerParameter::Kind;

Sequential network(bool synchronized = true) {
  Sequential model;
  model.add("stem", linear(features, width));
  model.add("block", residual(sequential({{"up", linear(width, 2 * width, false)},
                                          {"bn", batch_norm(2 * width, 1e-5f, 0.1f, synchronized)},
                                          {"tanh", fsdp::tanh(2 * width)},
                                          {"down", linear(2 * width, width, false)},
                                          {"bn2", batch_norm(width, 1e-5f, 0.25f, synchronized)}})));
  return std::move(model.add("head", linear(width, outputs)).loss(mean_squared_error(outputs)));
}

/// The rows of a micro-batch are divided among the ranks.
FillBatch part_of(const Job& job, std::uint64_t first_batch) {
  return [&job, first_batch](const Batch& batch) {
    const std::size_t number = first_batch + batch.micro_batch();
    const auto take = [&](std::span<float> part, std::size_t n, std::size_t seed) {
      const std::vector<float> all = exact(rows * n, seed + number);
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(part.size()) * job.rank(), part.size(), part.begin());
    };
    take(batch.inputs(), features, 1000), take(batch.targets(), outputs, 2000);
  };
}

FsdpOptions options_of(const Job& job, const std::string& strategy = "FULL_SHARD") {
  return golden_options(job, rows, micro_batches, strategy);
}

void set_initial(FullyShardedDataParallel& sharded) {
  std::size_t seed = 0;
  for (const auto& [name, n] : {std::pair("stem.weight", features * width),
                                {"stem.bias", width},
                                {"block.up.weight", 2 * width * width},
                                {"block.bn.weight", 2 * width},
                                {"block.bn.bias", 2 * width},
                                {"block.down.weight", 2 * width * width},
                                {"block.bn2.weight", width},
                                {"block.bn2.bias", width},
                                {"head.weight", width * outputs},
                                {"head.bias", outputs}})
    sharded.set_parameter(name, exact(n, seed++));
}

void train(FullyShardedDataParallel& sharded, const Job& job, std::uint64_t begin, std::uint64_t end,
           std::vector<double>* losses = nullptr) {
  for (std::uint64_t update = begin; update < end; ++update) {
    const double loss = sharded.step(0.05, part_of(job, update * micro_batches)).loss;
    if (losses) losses->push_back(loss);
  }
}

Parameters trained(Job& job, const FsdpOptions& options, const Sequential& model = network()) {
  FullyShardedDataParallel sharded(job, model, options);
  set_initial(sharded);
  train(sharded, job, 0, updates);
  BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  return parameters_of(sharded);
}

/// y = x + offset, with a constant. Counts rows in a state without forgetting (momentum 1 replaces it by the rows of a
/// micro-batch, over all ranks), and gathers as `how` says.
struct Counting final : Layer {
  enum class How { right, gathers_less, gathers_more, writes_less, writes_infinity, gathers_in_evaluations };
  explicit Counting(How how_to = How::right) : how(how_to) {}
  std::vector<LayerParameter> parameters() const override {
    return {{"scale", {features}, constant(1)},
            {"offset", {features}, constant(0.5f), Kind::constant},
            {"rows", {2}, constant(0), Kind::state, 1.0f}};
  }
  std::size_t inputs() const override { return features; }
  std::size_t outputs() const override { return features; }
  std::size_t gathers() const override { return 3; }
  std::size_t scratch() const override { return 3; }
  bool works_in(DType type) const override { return type == DType::f32 || type == DType::f16; }
  void gather(const Pass& pass) const {
    if (!pass.training() && how != How::gathers_in_evaluations) return;
    std::vector<float> mine(how == How::gathers_less ? 2 : how == How::gathers_more ? 4 : 3, static_cast<float>(pass.rows()));
    const Tensor all = pass.gather({mine.data(), 1, mine.size(), mine.size()});
    BOOST_TEST(all.rows == pass.ranks);
    for (std::size_t k = 0; k < all.rows; ++k) BOOST_TEST(all.get(k, 1) == static_cast<float>(pass.rows()));
  }
  void forward(const ForwardPass& pass) const override {
    gather(pass);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t c = 0; c < features; ++c)
        pass.y.set(r, c, pass.x.get(r, c) * pass.parameter(0).get(0, c) + pass.parameter(1).get(0, c));
  }
  void backward(const BackwardPass& pass) const override {
    if (pass.training()) gather(pass);
    for (std::size_t r = 0; r < pass.rows(); ++r)
      for (std::size_t c = 0; c < features; ++c) {
        pass.dx.set(r, c, pass.dy.get(r, c) * pass.parameter(0).get(0, c));
        if (const Tensor g = pass.gradient(0)) g.floats()[c] += pass.dy.get(r, c) * pass.x.get(r, c);
      }
    if (const Tensor next = pass.next(2)) {
      next.floats()[0] = static_cast<float>(pass.rows() * pass.ranks);
      if (how != How::writes_less) next.floats()[1] = how == How::writes_infinity ? HUGE_VALF : 7;
    }
  }
  How how;
};

/// y = x. Gathers how many rows each rank has.
struct RowsOfRanks final : Layer {
  std::size_t inputs() const override { return features; }
  std::size_t outputs() const override { return features; }
  std::size_t gathers() const override { return 1; }
  bool looks_ahead() const override { return false; }
  void gather(const Pass& pass) const {
    if (!pass.training()) return;
    float mine = static_cast<float>(pass.rows());
    const Tensor all = pass.gather({&mine, 1, 1, 1});
    for (std::size_t k = 0; k < all.rows; ++k) BOOST_TEST(all.get(k, 0) == mine);
  }
  void forward(const ForwardPass& pass) const override { gather(pass), ops::copy(pass, pass.y, pass.x); }
  void backward(const BackwardPass& pass) const override { gather(pass), ops::copy(pass, pass.dx, pass.dy); }
};

Sequential counting(Counting::How how = Counting::How::right) {
  Sequential model;
  model.add("count", std::make_shared<Counting>(how)).add("head", linear(features, outputs));
  return std::move(model.loss(mean_squared_error(outputs)));
}

}  // namespace

BOOST_AUTO_TEST_CASE(batch_norm_is_pytorchs_at_any_number_of_ranks) {
  Job job;
  const json golden = json::parse(std::ifstream(std::string(FSDP_TEST_DATA) + "/layers/batch_norm.json"));
  FullyShardedDataParallel sharded(job, network(), options_of(job));
  set_initial(sharded);
  std::vector<double> losses;
  train(sharded, job, 0, updates, &losses);
  for (std::size_t u = 0; u < updates; ++u)
    BOOST_TEST(std::abs(losses[u] - golden["losses"][u].get<double>()) < 1e-6 * losses[u]);
  const Parameters full = parameters_of(sharded);
  if (job.rank() == 0)
    for (const auto& [name, wanted] : golden["weights"].items())
      for (std::size_t i = 0; i < wanted.size(); ++i)
        BOOST_TEST(std::abs(full.at(name).at(i) - wanted[i].get<float>()) < 1e-6, name << " " << i);
  BOOST_TEST(std::abs(sharded.evaluate(part_of(job, 0)) - golden["evaluated"].get<double>()) < 1e-6);
  const std::vector<float> dx = sharded.input_gradients(part_of(job, 0));
  for (std::size_t i = 0; i < dx.size(); ++i)
    BOOST_TEST(std::abs(dx[i] - golden["dx"][dx.size() * static_cast<std::size_t>(job.rank()) + i].get<float>()) < 1e-7);
  BOOST_TEST((parameters_of(sharded) == full));  // evaluations leave states alone
  FsdpOptions recomputed = options_of(job);
  recomputed.activation_checkpointing = true;
  BOOST_TEST((trained(job, recomputed) == full));
  // Some strategies add up micro-batches before ranks, so bits are compared for one micro-batch.
  const auto of_one = [&](const std::string& strategy) {
    FsdpOptions options = options_of(job, strategy);
    options.gradient_accumulation_steps = 1;
    return trained(job, options);
  };
  const Parameters one = of_one("FULL_SHARD");
  for (const char* const strategy : {"SHARD_GRAD_OP", "NO_SHARD", "optim", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
    BOOST_TEST((of_one(strategy) == one), strategy);
  FsdpOptions in_bf16 = options_of(job, "SHARD_GRAD_OP");
  in_bf16.grad_dtype = "bf16";
  in_bf16.param_dtype = "bf16", in_bf16.ema_decay = 0.5, in_bf16.clip_value = 1e6;
  in_bf16.offload_optimizer = "nvme", in_bf16.nvme_path = new_folder("api-batch-norm", "nvme").string();
  const Parameters rounded = trained(job, in_bf16);
  for (const auto& [name, values] : full)
    for (std::size_t i = 0; i < values.size(); ++i) BOOST_TEST(std::abs(rounded.at(name)[i] - values[i]) < 0.05, name);
}

BOOST_AUTO_TEST_CASE(statistics_of_each_rank_are_averaged) {
  Job job;
  const Parameters own = trained(job, options_of(job), network(false)), all = trained(job, options_of(job));
  if (job.size() == 1) BOOST_TEST((own == all));
  // Without synchronization, the variances of small batches are smaller than that of all rows, and means are the same at first.
  if (job.rank() == 0 && job.size() > 1) BOOST_TEST((own != all));
}

BOOST_AUTO_TEST_CASE(states_are_saved_resumed_frozen_and_loaded) {
  Job job;
  const auto folder = new_folder("api-batch-norm", "saved");
  FsdpOptions options = options_of(job);
  options.ema_decay = 0.9;
  FullyShardedDataParallel whole(job, network(), options);
  set_initial(whole);
  train(whole, job, 0, 2);
  whole.save(folder / "step");
  const Parameters saved = parameters_of(whole);
  train(whole, job, 2, 4);
  FullyShardedDataParallel resumed(job, network(), options_of(job, "SHARD_GRAD_OP"));
  resumed.load(folder / "step");
  BOOST_TEST((parameters_of(resumed) == saved));
  train(resumed, job, 2, 4);
  const Parameters after = parameters_of(whole);
  for (const auto& [name, values] : parameters_of(resumed))
    for (std::size_t i = 0; i < values.size(); ++i) BOOST_TEST(std::abs(values[i] - after.at(name)[i]) < 1e-6, name);
  // A frozen norm keeps its states; so does one that train_only leaves out.
  resumed.freeze({"block.bn.*", "block.bn2.running_*"});
  const Parameters before = parameters_of(resumed);
  train(resumed, job, 4, 5);
  for (const auto& [name, values] : parameters_of(resumed))
    BOOST_TEST((values == before.at(name)) == (name.starts_with("block.bn.") || name.find("running") != std::string::npos),
               name);
  resumed.unfreeze({"block.*"});
  train(resumed, job, 5, 6);
  for (const auto& [name, values] : parameters_of(resumed)) BOOST_TEST((values != before.at(name)), name);
  // Weights from a file, with states.
  whole.save_full(folder / "full.h5");
  FullyShardedDataParallel loaded(job, network(), options_of(job));
  loaded.load_full(folder / "full.h5");
  BOOST_TEST((parameters_of(loaded) == after));
  BOOST_TEST(loaded.evaluate(part_of(job, 0)) == whole.evaluate(part_of(job, 0)));
  BOOST_TEST(whole.evaluate(part_of(job, 0), true) != whole.evaluate(part_of(job, 0)));  // averages, with the states
}

BOOST_AUTO_TEST_CASE(a_layer_of_a_user_with_state) {
  Job job;
  FullyShardedDataParallel sharded(job, counting(), options_of(job));
  const std::string plan = sharded.plan();
  const Parameters initial = parameters_of(sharded);
  sharded.step(0.05, part_of(job, 0));
  if (job.rank() == 0) {
    const Parameters after = parameters_of(sharded);
    for (const auto& [i, wanted] : {std::pair{0, static_cast<float>(rows)}, {1, 7.0f}})  // a mean over three ranks is rounded
      BOOST_TEST(std::abs(after.at("count.rows").at(static_cast<std::size_t>(i)) - wanted) < 1e-6f * wanted);
    BOOST_TEST((after.at("count.offset") == initial.at("count.offset")));
    BOOST_TEST((after.at("count.scale") != initial.at("count.scale")));
  } else {
    parameters_of(sharded);
  }
  BOOST_TEST(plan.find("gathered in layers") != std::string::npos);
  refused("'count.offset' is a constant of its layer", [&] { sharded.unfreeze({"count.offset"}); });
  sharded.freeze({"count.*"});
  sharded.unfreeze({"count.*"});  // all but the constant
  sharded.step(0.05, part_of(job, 0));
  Parameters unfrozen = parameters_of(sharded);
  if (job.rank() == 0) BOOST_TEST((unfrozen.at("count.offset") == initial.at("count.offset")));
  // A state that would not be finite is refused, and nothing has changed.
  FullyShardedDataParallel infinite(job, counting(Counting::How::writes_infinity), options_of(job));
  const Parameters of_infinite = parameters_of(infinite);
  refused("first in what moves the state count.rows", [&] { infinite.step(0.05, part_of(job, 0)); });
  BOOST_TEST((parameters_of(infinite) == of_infinite));
  // Norms of gradients by parameter leave states out.
  FsdpOptions with_norms = options_of(job);
  with_norms.norm_patterns = {"*"};
  FullyShardedDataParallel measured(job, counting(), with_norms);
  for (const auto& [name, norm] : measured.step(0.05, part_of(job, 0)).gradient_norms) BOOST_TEST(name != "count.rows");
  // An update that overflows moves no state.
  FsdpOptions in_fp16 = options_of(job);
  in_fp16.param_dtype = "fp16", in_fp16.fp16_init_scale = 0x1p30;
  FullyShardedDataParallel overflows(job, counting(), in_fp16);
  BOOST_TEST(overflows.step(0.05, part_of(job, 0)).skipped);
  const Parameters kept = parameters_of(overflows);
  if (job.rank() == 0) BOOST_TEST(kept.at("count.rows") == (std::vector<float>{0, 0}), boost::test_tools::per_element());
}

// Positions without labels are not left out, because ranks leave out others.
BOOST_AUTO_TEST_CASE(layers_that_gather_have_all_positions) {
  Job job;
  FsdpOptions options = {.batch_size = 2, .sequence_length = 64};
  Sequential model;
  model.add("first", linear(features, features)).add("rows", positions(1, std::make_shared<RowsOfRanks>()));
  model.add("head", linear(features, 3)).loss(cross_entropy(3));
  FullyShardedDataParallel sharded(job, model, options);
  const double loss = sharded
                          .step(0.1,
                                [&](const Batch& batch) {
                                  std::ranges::fill(batch.inputs(), 0.5f), std::ranges::fill(batch.labels(), -1);
                                  batch.labels()[static_cast<std::size_t>(job.rank())] = 1;
                                })
                          .loss;
  BOOST_TEST(std::isfinite(loss));
  options.invariant = true;
  if (job.size() != 3)  // no power of two, which is refused before
    refused("layers have state or gather", [&] { FullyShardedDataParallel(job, model, options); });
}

BOOST_AUTO_TEST_CASE(what_is_refused) {
  Job job;
  FsdpOptions options = options_of(job);
  const auto step = [&](Counting::How how) {
    FullyShardedDataParallel(job, counting(how), options).step(0.05, part_of(job, 0));
  };
  const auto says = [&](const std::string& text, Counting::How how) { refused(text, [&] { step(how); }); };
  says("layer 'count': backward() does not write 1 of 2 numbers of next() of 'rows'", Counting::How::writes_less);
  if (job.size() == 1) {  // on several ranks, an error of a layer ends the job
    says("layer 'count': forward() gathers 2 numbers in training (gathers() returns 3)", Counting::How::gathers_less);
    says("layer 'count': the pass gathers 4 numbers (gathers() returns 3)", Counting::How::gathers_more);
    FullyShardedDataParallel evaluated(job, counting(Counting::How::gathers_in_evaluations), options);
    refused("gather() is called in a pass that does not train", [&] { evaluated.evaluate(part_of(job, 0)); });
    FsdpOptions small = options_of(job);
    small.batch_size = 1;
    refused("training with one row", [&] {
      FullyShardedDataParallel(job, network(), small).step(0.05, [](const Batch& batch) {
        std::ranges::fill(batch.inputs(), 1.0f), std::ranges::fill(batch.targets(), 1.0f);
      });
    });
  }
  options.invariant = true;
  if (job.size() != 3)  // no power of two, which is refused before
    refused("layers have state or gather", [&] { FullyShardedDataParallel(job, network(), options); });
  FsdpOptions frozen = options_of(job);
  frozen.freeze = {"*.weight", "*.bias"};
  refused("every parameter is frozen", [&] { FullyShardedDataParallel(job, network(), frozen); });
  BOOST_CHECK_THROW(batch_norm(0), UserError);
  BOOST_CHECK_THROW(batch_norm(3, 0), UserError);
  BOOST_CHECK_THROW(batch_norm(3, 1e-5f, 1.5f), UserError);
}
