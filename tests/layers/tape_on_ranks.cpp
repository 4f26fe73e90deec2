// A recorded model in training: two towers with a contrastive loss in blocks of 8 rows have the same losses as by hand, with
// all strategies and recomputed; and ranks that record other operations are refused.
#include "mpi_main.hpp"

#include <cmath>
#include <string>

#include <fsdp/fsdp.hpp>

using namespace fsdp;
using namespace fsdp::test;

namespace {

constexpr std::size_t left = 20, right = 12, width = 16, block = 8, rows = 48;

// The towers and the loss: 18 lines.
Value unit(Tape&, Value x) { return x / fsdp::sqrt(row_sum(square(x)) + 1e-12f); }
Value contrastive(Tape& tape, Value x) {
  const Value scale = exp(tape.parameter("log_scale", {1}, constant(1.5f)));
  const auto side = [&](std::size_t mine, std::size_t other) {
    const Value scores = matmul(scale * columns(x, mine, width), columns(x, other, width), ops::Transpose::yes, block);
    return cross_entropy(scores, tape.position(block));
  };
  return 0.5f * (side(0, width) + side(width, 0));
}
Sequential two_towers(const LossPtr& loss = recorded_loss(2 * width, contrastive)) {
  const auto tower = [](std::size_t begin, std::size_t n) {
    return sequential({{"part", select_columns(left + right, begin, n)},
                       {"in", linear(n, 24)},
                       {"gelu", gelu(24)},
                       {"out", linear(24, width)},
                       {"unit", recorded(width, unit)}});
  };
  Sequential model;
  model.add("towers", parallel({{"left", tower(0, left)}, {"right", tower(left, right)}}, Join::concatenate));
  return model.loss(loss), model;
}

/// The same loss by hand, for all rows of a block.
class ByHand final : public Loss {
 public:
  std::vector<LayerParameter> parameters() const override { return {{"log_scale", {1}, constant(1.5f)}}; }
  std::size_t inputs() const override { return 2 * width; }
  bool takes_labels() const override { return false; }
  std::size_t targets() const override { return 0; }
  void evaluate(const LossPass& pass) const override {
    const double scale = std::exp(static_cast<double>(pass.parameter(0).get(0, 0)));
    double d_scale = 0;
    if (pass.dx) ops::fill_zero(pass, pass.dx);
    std::fill_n(pass.losses, pass.rows(), 0.0f);
    for (std::size_t begin = 0; begin < pass.rows(); begin += block)
      for (const bool turned : {false, true})
        for (std::size_t i = 0; i < block; ++i) {
          const std::size_t mine = turned ? width : 0, other = turned ? 0 : width;
          double score[block], sum = 0;
          for (std::size_t j = 0; j < block; ++j) {
            score[j] = 0;
            for (std::size_t c = 0; c < width; ++c)
              score[j] += double{pass.x.get(begin + i, mine + c)} * double{pass.x.get(begin + j, other + c)};
            sum += std::exp(scale * score[j]);
          }
          pass.losses[begin + i] += static_cast<float>(0.5 * (std::log(sum) - scale * score[i]));
          for (std::size_t j = 0; j < block && pass.dx; ++j) {
            const double d = 0.5 * double{pass.scale} * (std::exp(scale * score[j]) / sum - (i == j ? 1 : 0));
            d_scale += d * score[j] * scale;
            for (std::size_t c = 0; c < width; ++c) {
              pass.dx.row(begin + i)[mine + c] += static_cast<float>(d * scale * double{pass.x.get(begin + j, other + c)});
              pass.dx.row(begin + j)[other + c] += static_cast<float>(d * scale * double{pass.x.get(begin + i, mine + c)});
            }
          }
        }
    if (const Tensor d = pass.gradient(0)) d.floats()[0] += static_cast<float>(d_scale);
  }
};

std::vector<double> losses_of(Job& job, const Sequential& model, const FsdpOptions& given) {
  FsdpOptions options = given;
  options.batch_size = rows / static_cast<std::size_t>(job.size());
  options.optimizer = "sgd", options.momentum = 0.9;
  FullyShardedDataParallel sharded(job, model, options);
  std::vector<double> losses;
  for (std::size_t step = 0; step < 6; ++step) {
    const StepResult result = sharded.step(0.05, [&](const Batch& batch) {
      const std::size_t first = static_cast<std::size_t>(job.rank()) * batch.inputs().size();
      for (std::size_t i = 0; i < batch.inputs().size(); ++i)
        batch.inputs()[i] = static_cast<float>(std::sin(static_cast<double>((first + i) % 997 * (step + 3))));
    });
    losses.push_back(result.loss);
  }
  return losses;
}

}  // namespace

BOOST_AUTO_TEST_CASE(two_towers_are_those_by_hand) {
  Job job;
  const std::vector<double> wanted = losses_of(job, two_towers(std::make_shared<ByHand>()), {}),
                            whole = losses_of(job, two_towers(), {});
  BOOST_TEST(wanted.back() < wanted.front());
  for (std::size_t i = 0; i < wanted.size(); ++i)
    BOOST_TEST(std::abs(whole[i] - wanted[i]) < 2e-6 * wanted[i], whole[i] << " " << wanted[i]);
  for (const char* strategy : {"NO_SHARD", "SHARD_GRAD_OP"}) {
    FsdpOptions options;
    options.sharding_strategy = strategy;
    BOOST_TEST((losses_of(job, two_towers(), options) == whole), strategy);
  }
  FsdpOptions options;
  options.activation_checkpointing = true;
  BOOST_TEST((losses_of(job, two_towers(), options) == whole), "recomputed");
}

BOOST_AUTO_TEST_CASE(other_operations_on_a_rank_are_refused) {
  Job job;
  if (job.size() == 1) return;
  Sequential model;
  const bool is_first = job.rank() == 0;
  model.add("in", linear(32, 4)).add("unit", recorded(4, [=](Tape&, Value x) { return is_first ? tanh(x) : exp(x); }));
  model.loss(recorded_loss(4, [](Tape&, Value x) { return row_sum(square(x)); }));
  try {
    losses_of(job, model, {});
    BOOST_TEST(false, "the models differ");
  } catch (const std::exception& error) {
    BOOST_TEST(std::string(error.what()).find("layer unit, operation 1 is `") != std::string::npos, error.what());
    BOOST_TEST(std::string(error.what()).find("tanh") != std::string::npos, error.what());
  }
}
