// The numbers of updates and their verdicts, without a model in memory.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>

#include "engine/update_policy.hpp"
#include "nn/families.hpp"
#include "nn/transformer.hpp"

using namespace fsdp;

namespace {

Transformer make_small_model() {
  ConfigOverrides sizes;
  sizes.layers = 1, sizes.width = 8, sizes.heads = 1, sizes.vocab_size = 16;
  return Transformer(override_config(arch_config("gpt2"), sizes));
}
const Transformer& small_model() {
  static const Transformer model = make_small_model();
  return model;
}
UpdateResult result_of(double loss) {
  UpdateResult result;
  result.loss = loss, result.gradient_norm = 1;
  if (!std::isfinite(loss)) result.non_finite = 1;
  return result;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_numbers_of_an_update) {
  EngineOptions options;
  options.sharding.batch = {.B = 3, .T = 4};
  options.dropout = 0.25, options.clip_norm = 2, options.label_smoothing = 0.125, options.z_loss = 0.5;
  options.ema_decay = 0.75, options.ema_start_update = 5;
  Progress progress;
  progress.update = 4, progress.optimizer_began = 2;
  UpdatePolicy policy(options, small_model(), 2, progress);
  UpdateScalars scalars = policy.next(0.5, 24);
  BOOST_TEST(scalars.update == 5u);
  BOOST_TEST(scalars.learning_rate == 0.5);
  BOOST_TEST(scalars.tokens == 24);
  BOOST_TEST(scalars.state_began == 2u);
  BOOST_TEST(scalars.clip_norm == 2);
  BOOST_TEST(scalars.loss_scale == 1);
  BOOST_TEST(scalars.dropout.residual == 0.25f);
  BOOST_TEST(scalars.dropout.first_sequence == 6u);  // after the sequences of ranks 0 and 1
  BOOST_TEST(scalars.dropout.update == 5u);
  BOOST_TEST(scalars.loss_terms.label_smoothing == 0.125f);
  BOOST_TEST(scalars.loss_terms.z_loss == 0.5f);
  BOOST_TEST(scalars.ema_decay == 0);  // until update 5, the average is a copy
  BOOST_TEST((policy.judge(result_of(1), 20) == Verdict::done));
  BOOST_TEST(progress.update == 5u);
  BOOST_TEST(progress.tokens == 20u);
  BOOST_TEST(policy.next(0.5, 24).ema_decay == 0.75);
}

BOOST_AUTO_TEST_CASE(only_fp16_can_leave_out_an_update_that_is_not_finite) {
  for (const DType type : {DType::f32, DType::f16}) {
    EngineOptions options;
    options.sharding.types.parameter = type;
    options.loss_scaler = {.init_scale = 4, .min_scale = 1};
    Progress progress;
    UpdatePolicy policy(options, small_model(), 0, progress);
    const UpdateResult overflow = result_of(std::numeric_limits<double>::infinity());
    if (type == DType::f16) {
      BOOST_TEST(policy.next(1, 1).loss_scale == 4);
      BOOST_TEST((policy.judge(overflow, 8) == Verdict::left_out));
      BOOST_TEST(policy.next(1, 1).loss_scale == 2);
      BOOST_TEST(progress.loss_scaler->scale == 2);
    }
    BOOST_TEST((policy.judge(overflow, 8) == Verdict::refused));
    BOOST_TEST(progress.update == 0u);
    BOOST_TEST(progress.tokens == 0u);
  }
}

BOOST_AUTO_TEST_CASE(statistics_of_spikes_continue_from_the_progress) {
  EngineOptions options;
  options.skip_spikes = 3;
  Progress progress, other;
  UpdatePolicy policy(options, small_model(), 0, progress);
  for (int update = 0; update < 100; ++update) policy.judge(result_of(1 + 0.01 * (update % 7)), 1);
  BOOST_TEST(std::isfinite(policy.next(1, 1).most_loss));
  UpdateResult spike = result_of(9);
  spike.is_spike = true;
  BOOST_TEST((policy.judge(spike, 1) == Verdict::left_out));
  BOOST_TEST(progress.update == 100u);
  UpdatePolicy resumed(options, small_model(), 0, other);
  other.spikes = progress.spikes;
  resumed.restore();
  BOOST_TEST(resumed.next(1, 1).most_loss == policy.next(1, 1).most_loss);
  options.skip_spikes = 0;  // the statistics do not stay in checkpoints
  UpdatePolicy without(options, small_model(), 0, other);
  without.restore();
  BOOST_TEST(!other.spikes.has_value());
}
