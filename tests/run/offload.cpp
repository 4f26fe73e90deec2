// Offloading to the host and to a file: the numbers are those of a run that keeps everything on the device.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <atomic>

#include "base/error.hpp"
#include "plan/check/plan_check.hpp"
#include "plan/forget.hpp"
#include "run/golden_run.hpp"
#include "run/random_jobs.hpp"
#include "run/small_model.hpp"
#include "support/before_operation.hpp"
#include "support/places.hpp"

using namespace fsdp;
using namespace fsdp::test;

namespace {

Case offloaded(Case c, const StatePlaces& places) {
  c.plan.places = places;
  return c;
}

/// The optimizer's state, or also the parameters, on the host or in a file.
const std::pair<const char*, StatePlaces> all_places[] = {{"optimizer on the host", test::offloaded(true, false)},
                                                          {"all on the host", test::offloaded(true, true)},
                                                          {"optimizer in a file", in_a_file(false)},
                                                          {"parameters in a file, too", in_a_file(true)}};

}  // namespace

BOOST_AUTO_TEST_CASE(pytorch_is_reproduced) {
  for (const char* strategy : {"full", "none"})
    compare_with_pytorch("llama-gqa",
                         train_golden("llama-gqa", offloaded({.ranks = 2, .strategy = strategy}, test::offloaded(true, true))));
}

// A few updates with every strategy, number of ranks and place, with several micro-batches whose gradients are summed on the
// host; also on a device with a thread per stream, on which a late load changes the numbers.
BOOST_DATA_TEST_CASE(no_strategy_has_other_bits, boost::unit_test::data::make({1, 2, 3, 4}), ranks) {
  const char* name = "gpt2-tied";
  json run = read_json(golden_folder(name) / "run.json");
  run["updates"] = 2;
  for (const char* strategy : {"full", "grad-op", "optim", "none", "hybrid", "hybrid-grad-op"})
    for (const DType precision : {DType::f32, DType::bf16}) {
      Case c = {.ranks = ranks,
                .strategy = strategy,
                .micro_batches = ranks == 4 ? 3u : 2u,
                .group = ranks % 2 == 0 ? 2 : ranks,
                .plan = {.checkpoint_activations = strategy[0] == 'f', .accumulate_unsharded = strategy[0] == 'g'},
                .run = run,
                .precision = precision};
      const History kept = train_golden(name, c);
      for (const auto& [text, places] : all_places)
        for (const Threads threads : {Threads::one, Threads::each_stream}) {
          c.threads = threads;
          BOOST_CHECK_MESSAGE(train_golden(name, offloaded(c, places)) == kept,
                              strategy << " in " << name_of(precision) << ", " << text);
        }
    }
}

BOOST_AUTO_TEST_CASE(no_optimizer_has_other_bits) {
  const char* name = "gpt2-tied";
  for (json run : read_json(golden_folder("optimizers.json"))) {
    run["updates"] = 3;
    Case c = {.ranks = 2, .run = run, .state_type = DType::bf16, .threads = Threads::each_stream};
    const History narrow = train_golden(name, c);
    for (const StatePlaces& places : {test::offloaded(true, true), in_a_file(true)})
      BOOST_CHECK_MESSAGE(train_golden(name, offloaded(c, places)) == narrow, run["optimizer"]);
    c.precision = c.master = c.gradient = DType::bf16;
    const History kept = train_golden(name, c);
    for (const auto& [text, places] : all_places)
      BOOST_CHECK_MESSAGE(train_golden(name, offloaded(c, places)) == kept, run["optimizer"] << " in bf16, " << text);
  }
}

// The error is that of the load or unload, also if another rank waits for the one that fails.
BOOST_AUTO_TEST_CASE(a_file_that_fails_ends_all_ranks) {
  for (const Threads threads : {Threads::one, Threads::communication, Threads::each_stream})
    for (const StreamId where : {StreamId::load, StreamId::unload}) {
      std::atomic<int> ended = 0;
      const auto job = [&] {
        run_ranks(3, [&](Communicator& world) {
          kernels::set_threads(1);
          const auto device = make_device(threads, static_cast<std::uint64_t>(world.rank()));
          ShardedModel sharded(small_model(), {.batch = {2, 8}, .plan = {.micro_batches = 2, .places = in_a_file(true)}},
                               world);
          int left = 7;
          BeforeOperation fail([&](const Operation& op) {
            if (world.rank() == 1 && op.stream == where && left-- == 0) throw RunError("tile 3 cannot be read");
          });
          Executor& executor = sharded.allocate(*device, {.nvme_path = std::filesystem::current_path()});
          executor.observe(fail);
          try {
            executor.initialize_parameters(3);
            executor.publish_parameters();
            for (int u = 0; u < 3; ++u) executor.run_update(read_some, {.learning_rate = 1e-2, .tokens = 96});
          } catch (...) {
            ++ended;
            throw;
          }
        });
      };
      BOOST_CHECK_EXCEPTION(job(), RunError,
                            [](const RunError& e) { return e.what() == std::string("tile 3 cannot be read"); });
      BOOST_TEST(ended == 3);
    }
}

// An update that is not applied changes nothing, not even the 16-bit parameters that the optimizer would have rounded again.
BOOST_AUTO_TEST_CASE(an_update_that_is_not_finite_changes_nothing) {
  const auto losses = [](const UnitTypes& types, const StatePlaces& places) {
    std::vector<double> all;
    run_ranks(2, [&](Communicator& world) {
      kernels::set_threads(1);
      const auto device = make_cpu_device();
      ShardedModel sharded(small_model(), {.batch = {2, 8}, .types = types, .plan = {.micro_batches = 2, .places = places}},
                           world);
      Executor& executor = sharded.allocate(*device, {.nvme_path = std::filesystem::current_path()});
      executor.initialize_parameters(1);
      executor.publish_parameters();
      for (const double scale : {1.0, 2e40, 1.0, 2e40, 1.0}) {
        const UpdateResult result = executor.run_update(read_some, {.learning_rate = 1e-2, .tokens = 64, .loss_scale = scale});
        expect(result.finite() == (scale == 1.0), "the gradient overflows, or does not");
        if (world.rank() == 0 && scale == 1.0) all.push_back(result.loss);
      }
      expect(executor.file_bytes() == sharded.plan().bytes_on_disk(), "the file has the planned size");
      const double evaluated = executor.evaluate(read_some).value();
      if (world.rank() == 0) all.push_back(evaluated);
    });
    return all;
  };
  for (const UnitTypes& types :
       {UnitTypes{}, UnitTypes{.parameter = DType::bf16}, UnitTypes{DType::bf16, DType::f32, DType::bf16, DType::bf16}}) {
    const std::vector<double> kept = losses(types, {});
    BOOST_TEST(kept[0] != kept[1]);
    for (const StatePlaces& places : {test::offloaded(true, true), in_a_file(true)})
      BOOST_TEST(losses(types, places) == kept, boost::test_tools::per_element());
  }
}

// Only the requested parameters are initialized.
BOOST_AUTO_TEST_CASE(a_part_of_the_parameters_is_initialized) {
  for (const bool on_disk : {false, true})
    for (const DType master : {DType::f32, DType::bf16}) {
      const auto device = make_cpu_device();
      run_ranks(1, [&](Communicator& world) {
        ShardedModel sharded(small_model(),
                             {.batch = {2, 8},
                              .types = {.parameter = DType::bf16, .master = master},
                              .plan = {.places = on_disk ? in_a_file(true) : test::offloaded(true, true)}},
                             world);
        Executor& executor = sharded.allocate(*device, {.nvme_path = std::filesystem::current_path()});
        executor.initialize_parameters(1);
        const ShardState state = executor.parameters();
        const std::vector<float> first = state.values(1);
        std::vector<bool> which(sharded.model().parameters().size(), false);
        const std::size_t again = sharded.layout().units()[1].parameters.at(2);  // a matrix
        which[again] = true;
        executor.initialize_parameters(2, which);
        const std::vector<float> second = state.values(1);
        std::size_t changed = 0;
        for (const Slice& slice : sharded.layout().slices(1, 0))
          for (std::size_t i = slice.shard_offset; i < slice.shard_offset + slice.range.size(); ++i) {
            changed += first[i] != second[i];
            expect(slice.parameter == again || first[i] == second[i], "others stay");
          }
        expect(changed > 0 && (state.units[1].host() == nullptr) == on_disk, "it is initialized in its place");
      });
    }
}

// Inputs of recomputed blocks: random jobs have the same bits if these are on the host, and need less memory of the device. A
// plan without one of their loads and unloads is refused.
BOOST_AUTO_TEST_CASE(inputs_of_blocks_on_the_host_have_the_same_bits) {
  std::size_t copies = 0, kept_bytes = 0, bytes = 0;
  each_random_job(16, 9, [&](Job job, std::uint64_t number) {
    PlanOptions& options = job.sharding.plan;
    job.config.layers = 8;
    options.checkpoint_activations = true, options.checkpoint_policy = CheckpointPolicy::block;
    options.checkpoint_every = 1 + number % 2;
    const Transformer model(job.config, traits_for(DeviceKind::cpu, job.piece_rows));
    const Placement& placement = find_placement(job.sharding.strategy);
    const auto plan = [&] {
      return plan_sharding(model, job.sharding, mesh_shape(placement, job.ranks, job.sharding.shard_group_size));
    };
    const Outcome kept = train(job);
    kept_bytes += plan().plan.peak_bytes;
    options.offloaded_inputs = 100;
    BOOST_TEST(same_bits(train(job, number % 3 == 0 ? Threads::one : Threads::each_stream), kept), job.description);
    ShardedPlan planned = plan();
    bytes += planned.plan.peak_bytes;
    for (Operation& op : planned.plan.update) {
      if (op.kind->subject != Subject::owner || op.stage < 0) continue;
      ++copies;
      const Operation whole = op;
      forget(op);
      BOOST_CHECK_THROW(check_plan(planned.plan, planned.layout, placement,
                                   model.sizes(job.sharding.batch, job.sharding.types.parameter, {}), options.micro_batches),
                        InternalError);
      op = whole;
    }
  });
  BOOST_TEST(copies > 100u);
  BOOST_TEST(bytes < kept_bytes);
}
