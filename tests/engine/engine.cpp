// An engine on ranks that are threads: saves and the steps to resume from, without programs.
#include <boost/test/unit_test.hpp>

#include <fstream>

#include "comm/threads/threads.hpp"
#include "engine/engine.hpp"
#include "engine/find_step.hpp"
#include "engine/fit.hpp"
#include "layers/chain.hpp"
#include "layers/layers.hpp"
#include "layers/losses.hpp"
#include "nn/families.hpp"
#include "nn/transformer.hpp"
#include "support/files.hpp"
#include "support/messages.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

std::shared_ptr<const Model> small_model() {
  ConfigOverrides sizes;
  sizes.layers = 2, sizes.width = 12, sizes.heads = 3, sizes.vocab_size = 17, sizes.max_positions = 8;
  return std::make_shared<Transformer>(override_config(arch_config("gpt2"), sizes));
}

/// A rank's engine with initial weights.
struct Rank {
  Rank(Communicator& ranks, EngineOptions options = {}, SaveListener listener = {}, bool saves_meanwhile = false)
      : world(ranks), engine(small_model(), with_batch(std::move(options)), ranks, saves_meanwhile, std::move(listener)) {
    engine.allocate(*device);
    engine.executor().initialize_parameters(7);
    if (engine.keeps_average()) engine.executor().begin_average();
    engine.start();
  }
  static EngineOptions with_batch(EngineOptions options) {
    options.sharding.batch = {.B = 1, .T = 5};
    return options;
  }
  void update() {
    const UpdateScalars scalars = engine.next_update(0.1, 5.0 * world.size());
    const UpdateResult result = engine.executor().run_update(
        [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
          for (std::int32_t i = 0; i < 5; ++i) inputs[i] = (i * 3 + world.rank()) % 17, targets[i] = (i * 5 + 1) % 17;
        },
        scalars);
    BOOST_TEST((engine.judge(result, scalars.tokens) == Verdict::done));
  }
  std::filesystem::path save(const std::filesystem::path& folder, bool wait = true) {
    SaveOptions options;
    options.folder = folder;
    return engine.save(options, engine.header(), wait);
  }
  std::vector<float> weights() {
    const ShardState state = engine.executor().parameters();
    std::vector<float> all;
    for (std::size_t unit = 0; unit < state.units.size(); ++unit) {
      std::vector<float> some(state.numel(unit));
      state.read(unit, 0, std::span(some));
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  FoundStep find(const std::filesystem::path& folder) {
    const auto open = [&] { return latest_checkpoint(folder) ? open_checkpoint(folder, nullptr, Verify::no) : nullptr; };
    return find_step(world, {.open = open, .folder = folder});
  }

  Communicator& world;
  std::unique_ptr<Device> device = make_cpu_device();
  Engine engine;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_step_is_saved_once_and_continues_with_the_same_bits) {
  const TemporaryFolder folder;
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, [&](Communicator& world) {
      const auto there = folder / std::to_string(ranks);
      Rank one(world, {}, {}, true), other(world);
      one.update();
      const auto step = one.save(there, false);
      BOOST_TEST(one.engine.saver().saving());
      one.update();  // the save has a copy
      one.engine.saver().finish();
      BOOST_TEST(one.save(there) != step);
      const auto latest = one.save(there);
      BOOST_TEST(latest == one.save(there));
      const FoundStep found = other.find(there);
      BOOST_TEST(found.checkpoint->header().progress.update == 2u);
      agree(world, [&] { other.engine.load_states(*found.checkpoint, true); });
      other.engine.progress() = found.checkpoint->header().progress;
      other.engine.restore_policy();
      other.engine.start([](std::size_t) { return true; });
      BOOST_TEST((other.weights() == one.weights()));
      one.update(), other.update();
      BOOST_TEST((other.weights() == one.weights()));
    });
}

BOOST_AUTO_TEST_CASE(a_save_that_fails_leaves_no_step) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Communicator& world) {
    bool fails = true;
    const auto may_complete = [&] {
      if (fails && world.rank() == 0) throw RunError("the disk is full; free some space");
    };
    Rank rank(world, {}, {.may_complete = may_complete});
    rank.update();
    CHECK_CONTAINS(message_of<CollectiveError>([&] { rank.save(folder.path()); }), "the disk is full");
    BOOST_TEST(rank.engine.saver().has_failed());
    BOOST_TEST(rank.engine.saver().last_update() == 0u);
    BOOST_TEST(!latest_checkpoint(folder.path()).has_value());
    world.barrier();
    fails = false;
    const auto step = rank.save(folder.path());
    BOOST_TEST((latest_checkpoint(folder.path()) == step));
    BOOST_TEST(!rank.engine.saver().has_failed());
  });
}

BOOST_AUTO_TEST_CASE(a_damaged_step_is_passed_over_and_renamed) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Communicator& world) {
    Rank rank(world);
    rank.update();
    const auto good = rank.save(folder.path());
    rank.update();
    const auto bad = rank.save(folder.path());
    if (world.rank() == 0) {
      std::fstream file(bad / "rank-00001-of-00002.h5", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-200, std::ios::end);
      file.put('x');
    }
    world.barrier();
    const FoundStep found = rank.find(folder.path());
    BOOST_TEST(found.checkpoint->header().progress.update == 1u);
    BOOST_TEST(found.passed_over.size() == 1u);
    CHECK_CONTAINS(found.passed_over.front(), "is damaged");
    CHECK_CONTAINS(found.passed_over.front(), "It was renamed to");
    BOOST_TEST(!std::filesystem::exists(bad));
    BOOST_TEST((latest_checkpoint(folder.path()) == good));
  });
}

BOOST_AUTO_TEST_CASE(ranks_that_see_different_steps_stop) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Communicator& world) {
    Rank rank(world);
    rank.update();
    rank.save(folder.path());
    const auto there = world.rank() == 0 ? folder.path() : folder / "elsewhere";
    CHECK_CONTAINS(message_of<CollectiveError>([&] { rank.find(there); }),
                   "the ranks see different checkpoints (rank 0 that of update 1, rank 1 none");
  });
}

BOOST_AUTO_TEST_CASE(what_a_checkpoint_must_have) {
  const TemporaryFolder folder;
  run_ranks(1, [&](Communicator& world) {
    Rank rank(world);
    rank.update();
    const auto checkpoint = open_checkpoint(rank.save(folder.path()), nullptr, Verify::yes);
    EngineOptions options = rank.engine.options();
    require_same_optimizer(options.sharding.optimizer, *checkpoint, "");
    BOOST_TEST(require_average(options, *checkpoint) == "");
    BOOST_TEST(describe_new_states(rank.engine.model().layout(), rank.engine.parameters(), *checkpoint) == "");
    options.sharding.optimizer.kind = &find_optimizer("lion");
    CHECK_CONTAINS(
        message_of<UserError>([&] { require_same_optimizer(options.sharding.optimizer, *checkpoint, "start anew"); }),
        "holds the state of `optimizer` adamw (this run has `optimizer` lion); give the optimizer that it was written "
        "with, or start anew");
    options.ema_decay = 0.5;
    CHECK_CONTAINS(message_of<UserError>([&] { require_average(options, *checkpoint); }), "has no average of the weights");
    options.ema_start_update = 1;
    BOOST_TEST(require_average(options, *checkpoint) == "");
  });
}

BOOST_AUTO_TEST_CASE(the_average_is_swapped_back_after_an_error) {
  run_ranks(2, [&](Communicator& world) {
    EngineOptions options;
    options.ema_decay = 0.5, options.sharding.plan.average_weights = true;
    Rank rank(world, options);
    rank.update(), rank.update();
    const std::vector<float> trained = rank.weights();
    BOOST_CHECK_THROW(rank.engine.with(Weights::average,
                                       [&] {
                                         BOOST_TEST((rank.weights() != trained));
                                         throw CollectiveError("stop", 0, true, 1);
                                       }),
                      CollectiveError);
    BOOST_TEST((rank.weights() == trained));
  });
}

BOOST_AUTO_TEST_CASE(freezing_makes_a_new_plan_and_keeps_the_bits) {
  run_ranks(2, [&](Communicator& world) {
    Rank rank(world);
    rank.update();
    const std::uint64_t plans = rank.engine.plans();
    std::map<std::string, bool> frozen;
    for (const Parameter& parameter : rank.engine.parameters()) frozen[parameter.name] = parameter.block == 0;
    rank.engine.freeze(frozen);
    BOOST_TEST(rank.engine.plans() == plans + 1);
    rank.engine.freeze(frozen);  // nothing changes
    BOOST_TEST(rank.engine.plans() == plans + 1);
    rank.update();
    BOOST_TEST(!rank.engine.is_lost());
  });
}

// Messages name the stages of a model: a user's layer is no "block 0".
BOOST_AUTO_TEST_CASE(a_refused_update_names_the_stage) {
  run_ranks(2, [&](Communicator& world) {
    const auto model = std::make_shared<Chain>(NamedLayers{{"fc1", linear(3, 3)}, {"fc2", linear(3, 3)}}, "loss",
                                               mean_squared_error(3), kernels::traits_of_cpu());
    BOOST_TEST((!model->decoding && !model->tables && !model->recomputation));
    BOOST_TEST((small_model()->decoding && small_model()->stage(1).name == "block 0"));
    const auto device = make_cpu_device();
    Engine engine(model, Rank::with_batch({}), world, false, {});
    engine.allocate(*device);
    engine.executor().initialize_parameters(7);
    engine.start();
    const UpdateScalars scalars = engine.next_update(0.1, 5.0 * world.size());
    const UpdateResult result = engine.executor().run_update(
        [&](std::size_t, std::int32_t* inputs, std::int32_t*) {
          std::fill_n(reinterpret_cast<float*>(inputs), 15, std::numeric_limits<float>::infinity());
        },
        scalars);
    CHECK_CONTAINS(describe_refused(engine.model(), world, scalars, result),
                   "first in the output of the conversion of the inputs on rank 0");
    BOOST_TEST(engine.model().model().stage(2).name == "layer 'fc2'");
  });
}

BOOST_AUTO_TEST_CASE(the_interval_of_saves_follows_from_the_last_save) {
  const TemporaryFolder folder;
  run_ranks(2, [&](Communicator& world) {
    double reported_s = 0;
    Rank rank(world, {}, {.saved = [&](const SaveMetrics& saved) { reported_s = saved.interval_s; }});
    Saver& saver = rank.engine.saver();
    SaveOptions options;
    options.folder = folder.path();
    options.interval_s = 60;
    BOOST_TEST(saver.interval_s(options) == 60.0);
    options.interval_auto = true, options.mtbf_s = 1e4;
    BOOST_TEST(saver.interval_s(options) == 0.0);  // nothing is known yet
    rank.update();
    rank.engine.save(options, rank.engine.header(), true);
    const double most_s = optimal_interval_s(saver.last_duration_s(), options.mtbf_s), found_s = saver.interval_s(options);
    BOOST_TEST((found_s <= most_s && found_s > most_s / 2));  // training waited for almost all of the save
    BOOST_TEST(reported_s == found_s);
  });
}
