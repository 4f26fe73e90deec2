// A loss that sees the rows of all ranks: the loss of CLIP gives PyTorch's numbers for all rows in one process, at any number
// of ranks, and the same bits under all strategies.
#include "mpi_main.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <fsdp/fsdp.hpp>

#include "support.hpp"
#include "support/golden.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t rows = 12, left = 5, right = 3, width = 4, micro_batches = 2, updates = 6;

/// Row r has two vectors a and b; those of one row belong together. The logits of a row are exp(log_scale) a . b for all b of
/// all ranks, and the same with a and b exchanged. The loss is the mean of both cross-entropies.
class Contrastive final : public Loss {
 public:
  explicit Contrastive(bool looks_ahead = true) : looks_ahead_(looks_ahead) {}
  std::vector<LayerParameter> parameters() const override { return {{"log_scale", {1}, constant(0)}}; }
  std::size_t inputs() const override { return 2 * width; }
  bool takes_labels() const override { return false; }
  std::size_t targets() const override { return 0; }
  bool sees_all_ranks() const override { return true; }
  bool looks_ahead() const override { return looks_ahead_; }
  bool works_in(DType) const override { return true; }
  void evaluate(const LossPass& pass) const override {
    BOOST_TEST_REQUIRE(pass.all.rows == pass.ranks * pass.rows());
    const float scale = std::exp(pass.parameter(0).get(0, 0));
    const Tensor d_scale = pass.gradient(0);
    for (std::size_t r = 0; r < pass.rows(); ++r) {
      BOOST_TEST(pass.all.get(pass.first_row + r, 0) == pass.x.get(r, 0));
      pass.losses[r] = 0;
      for (std::size_t c = 0; pass.dx && c < 2 * width; ++c) pass.dx.set(r, c, 0);
      for (const std::size_t mine : {std::size_t{0}, width}) {
        const std::size_t other = width - mine;
        std::vector<double> logits;
        for (std::size_t j = 0; j < pass.all.rows; ++j) {
          double sum = 0;
          for (std::size_t c = 0; c < width; ++c)
            sum += static_cast<double>(pass.x.get(r, mine + c)) * static_cast<double>(pass.all.get(j, other + c));
          logits.push_back(static_cast<double>(scale) * sum);
        }
        const double most = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit - most);
        const double log_sum = most + std::log(sum);
        pass.losses[r] += static_cast<float>(0.5 * (log_sum - logits[pass.first_row + r]));
        for (std::size_t j = 0; pass.dx && j < logits.size(); ++j) {
          const double d =
              0.5 * static_cast<double>(pass.scale) * (std::exp(logits[j] - log_sum) - (j == pass.first_row + r ? 1 : 0));
          if (d_scale) d_scale.floats()[0] += static_cast<float>(d * logits[j]);
          for (std::size_t c = 0; c < width; ++c) {
            const auto factor = static_cast<float>(d * static_cast<double>(scale));
            pass.dx.set(r, mine + c, pass.dx.get(r, mine + c) + factor * pass.all.get(j, other + c));
            pass.d_all.row(j)[other + c] += factor * pass.x.get(r, mine + c);
          }
        }
      }
    }
  }

 private:
  bool looks_ahead_;
};

/// The same, recorded.
LossPtr recorded_contrastive() {
  return recorded_loss(2 * width, [](Tape& tape, Value x) {
    const Value scale = exp(tape.parameter("log_scale", {1}, constant(0))), all = tape.all(), own = tape.own_row();
    const auto side = [&](std::size_t mine, std::size_t other) {
      return cross_entropy(matmul(scale * columns(x, mine, width), columns(all, other, width), ops::Transpose::yes), own);
    };
    return 0.5f * (side(0, width) + side(width, 0));
  });
}

Sequential two_encoders(LossPtr loss = std::make_shared<Contrastive>()) {
  const auto encoder = [](std::size_t begin, std::size_t n) {
    return sequential(
        {{"part", select_columns(left + right, begin, n)}, {"linear", linear(n, width)}, {"tanh", fsdp::tanh(width)}});
  };
  Sequential model;
  model.add("towers", parallel({{"left", encoder(0, left)}, {"right", encoder(left, right)}}, Join::concatenate));
  model.add("out", identity(2 * width));  // so that `towers` can be recomputed
  return std::move(model.loss(std::move(loss)));
}

struct Outcome {
  std::vector<double> losses;
  Parameters parameters;  // on rank 0
  bool operator==(const Outcome&) const = default;
};

/// The micro-batches of an update are divided among the ranks.
FillBatch part_of(const Job& job, std::uint64_t update) {
  return [&job, update](const Batch& batch) {
    const std::vector<float> all = exact(rows * (left + right), 1000 + update * micro_batches + batch.micro_batch());
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(batch.inputs().size()) * job.rank();
    std::copy_n(first, batch.inputs().size(), batch.inputs().begin());
  };
}

FsdpOptions options_of(const Job& job, const std::string& strategy = "FULL_SHARD") {
  return golden_options(job, rows, micro_batches, strategy);
}

void set_initial(FullyShardedDataParallel& sharded) {
  std::size_t seed = 0;
  for (const auto& [name, n] : {std::pair("loss.log_scale", std::size_t{1}),
                                {"towers.left.linear.weight", width * left},
                                {"towers.left.linear.bias", width},
                                {"towers.right.linear.weight", width * right},
                                {"towers.right.linear.bias", width}})
    sharded.set_parameter(name, exact(n, seed++));
}

Outcome train(Job& job, const FsdpOptions& options, const LossPtr& loss = std::make_shared<Contrastive>()) {
  FullyShardedDataParallel sharded(job, two_encoders(loss), options);
  set_initial(sharded);
  Outcome outcome;
  for (std::uint64_t update = 0; update < updates; ++update)
    outcome.losses.push_back(sharded.step(0.5, part_of(job, update)).loss);
  outcome.parameters = parameters_of(sharded);
  BOOST_TEST(sharded.peak_bytes() == sharded.memory().total);
  return outcome;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_loss_of_clip_is_pytorchs_at_any_number_of_ranks) {
  Job job;
  const json golden = json::parse(std::ifstream(std::string(FSDP_TEST_DATA) + "/layers/contrastive.json"));
  const Outcome full = train(job, options_of(job));
  for (std::size_t u = 0; u < updates; ++u)
    BOOST_TEST(std::abs(full.losses[u] - golden["losses"][u].get<double>()) < 1e-6 * full.losses[u]);
  if (job.rank() == 0)
    for (const auto& [name, wanted] : golden["weights"].items())
      for (std::size_t i = 0; i < wanted.size(); ++i)
        BOOST_TEST(std::abs(full.parameters.at(name).at(i) - wanted[i].get<float>()) < 2e-6, name << " " << i);
  const Outcome by_tape = train(job, options_of(job), recorded_contrastive());
  for (std::size_t u = 0; u < updates; ++u) BOOST_TEST(std::abs(by_tape.losses[u] - full.losses[u]) < 1e-6 * full.losses[u]);
  for (const auto& [name, values] : full.parameters)
    for (std::size_t i = 0; i < values.size(); ++i)
      BOOST_TEST(std::abs(by_tape.parameters.at(name)[i] - values[i]) < 2e-6, name << " " << i);
  FsdpOptions recomputed = options_of(job);
  recomputed.activation_checkpointing = true;
  BOOST_TEST((train(job, recomputed) == full));
  // Some strategies add up micro-batches before ranks, so bits are compared for one micro-batch.
  const auto of_one = [&](const std::string& strategy) {
    FsdpOptions options = options_of(job, strategy);
    options.gradient_accumulation_steps = 1;
    return train(job, options);
  };
  const Outcome one = of_one("FULL_SHARD");
  for (const char* const strategy : {"SHARD_GRAD_OP", "NO_SHARD", "optim", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
    BOOST_TEST((of_one(strategy) == one), strategy);
  FsdpOptions in_bf16 = options_of(job);
  in_bf16.param_dtype = "bf16";
  const Outcome rounded = train(job, in_bf16);
  for (std::size_t u = 0; u < updates; ++u) BOOST_TEST(std::abs(rounded.losses[u] / full.losses[u] - 1) < 0.02);
}

BOOST_AUTO_TEST_CASE(evaluations_and_frozen_encoders) {
  Job job;
  FullyShardedDataParallel sharded(job, two_encoders(), options_of(job));
  set_initial(sharded);
  const double before = sharded.evaluate(part_of(job, 0));
  // The gradient of the mean loss with respect to a number of the last rank, which all ranks' losses depend on.
  const auto with = [&](float more) {
    return sharded.evaluate([&](const Batch& batch) {
      part_of(job, 0)(batch);
      if (job.rank() == job.size() - 1) batch.inputs()[3] += more;
    });
  };
  const std::vector<float> gradients = sharded.input_gradients(part_of(job, 0));
  const double difference = (with(0.01f) - with(-0.01f)) / 0.02;
  if (job.rank() == job.size() - 1) BOOST_TEST(std::abs(static_cast<double>(gradients[3]) - difference) < 3e-5);
  BOOST_TEST(std::abs(difference) > 1e-4);
  BOOST_TEST(std::abs(before - sharded.evaluate(part_of(job, 0))) == 0);
  for (const char* const title : {"gather outputs", "scatter gradients of outputs"})
    BOOST_TEST(sharded.plan().find(title) != std::string::npos);
  BOOST_TEST(sharded.plan().find("gather targets") == std::string::npos);  // there are none
  sharded.freeze({"towers.*"});
  BOOST_TEST(sharded.plan().find("scatter gradients of outputs") == std::string::npos);
  const Parameters initial = parameters_of(sharded);
  sharded.step(0.1, part_of(job, 0));
  for (const auto& [name, values] : parameters_of(sharded))
    BOOST_TEST((values == initial.at(name)) == (name != "loss.log_scale"));
}

// The rows of all ranks have fp32 gradients in every type, and the loss may depend on the place of a row.
BOOST_AUTO_TEST_CASE(other_uses_of_all_rows) {
  Job job;
  const auto norm_of = [&](const char* type) {
    const LossPtr loss = recorded_loss(2 * width, [](Tape& tape, Value x) {
      return (row_sum(x) + row_sum(column_sum(square(transpose(tape.all()))))) * (1.0f + is_less(tape.own_row(), 1.5f));
    });
    FsdpOptions options = options_of(job);
    options.param_dtype = type, options.fp16_init_scale = type[0] == 'f' && type[2] == '1' ? std::optional(1.0) : std::nullopt;
    FullyShardedDataParallel sharded(job, two_encoders(loss), options);
    sharded.set_parameter("towers.left.linear.weight", exact(width * left, 1));
    return sharded.step(0.1, part_of(job, 0)).gradient_norm;
  };
  const double norm = norm_of("fp32");
  BOOST_TEST(norm > 0);
  for (const char* const type : {"bf16", "fp16"}) BOOST_TEST(std::abs(norm_of(type) / norm - 1) < 0.03, type);
}

BOOST_AUTO_TEST_CASE(what_is_refused) {
  Job job;
  FsdpOptions options = options_of(job);
  options.invariant = true;
  if (job.size() != 3)  // no power of two, which is refused before
    refused("the loss sees the rows of all ranks, which are others at another number of ranks, so invariant",
            [&] { FullyShardedDataParallel(job, two_encoders(), options); });
  refused("loss 'loss' sees all ranks, but looks_ahead() is false",
          [&] { FullyShardedDataParallel(job, two_encoders(std::make_shared<Contrastive>(false)), options_of(job)); });
}
