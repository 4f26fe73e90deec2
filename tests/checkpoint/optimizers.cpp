// Every optimizer's state in checkpoints: a resumed run has the same bits, and the state is unchanged after it is saved at 4
// ranks, loaded and saved at 3, and again at 1.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <nlohmann/json.hpp>

#include "checkpoint/inspect.hpp"
#include "checkpoint/support.hpp"
#include "h5/h5.hpp"
#include "kernels/threads.hpp"
#include "run/sharded_model.hpp"
#include "support/plain_hdf5.hpp"
#include "support/threaded_device.hpp"

using namespace fsdp;
using namespace fsdp::test;
namespace fs = std::filesystem;

namespace {

struct Choice {
  OptimizerOptions options;
  std::string name;
};

std::ostream& operator<<(std::ostream& out, const Choice& choice) { return out << choice.name; }

std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (const Optimizer* const info : optimizers())
    for (const DType type : {DType::f32, DType::bf16})
      for (const bool amsgrad : {false, true}) {
        if (amsgrad && !info->reads.amsgrad) continue;
        OptimizerOptions options = {.kind = info, .momentum = 0.9, .amsgrad = amsgrad, .state_type = type};
        all.push_back({options, std::string(info->name) + (amsgrad ? ", amsgrad, " : ", ") + std::string(name_of(type))});
      }
  return all;
}

constexpr std::size_t B = 1, T = 6, sequences = 12;

void read_tokens(std::size_t update, std::size_t rank, std::size_t micro, std::size_t batches, std::int32_t* inputs,
                 std::int32_t* targets) {
  for (std::size_t i = 0; i < B * T; ++i) {
    const std::size_t token = ((update * sequences) + (rank * batches + micro) * B) * T + i;
    inputs[i] = static_cast<std::int32_t>(token * token % 1009 % 37);
    targets[i] = static_cast<std::int32_t>((token + 1) * (token + 1) % 1009 % 37);
  }
}

struct Part {
  int ranks = 1;
  std::string strategy = "full";
  fs::path from = {};         // a step folder to start from, or nothing
  std::uint64_t updates = 0;  // the number of updates to run
  fs::path to = {};           // a save folder, or nothing
};

/// The weights of rank 0, and the step folder.
struct Result {
  std::vector<std::vector<float>> weights;
  std::vector<double> losses;
  fs::path step;
  bool operator==(const Result& other) const { return weights == other.weights && losses == other.losses; }
};

Result run_stage(const Choice& choice, const Part& stage) {
  Result result;
  run_ranks(stage.ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    // The state is in memory that host code cannot access.
    const auto device = std::make_unique<test::ThreadedDevice>(static_cast<std::uint64_t>(world.rank()));
    const std::size_t batches = sequences / static_cast<std::size_t>(stage.ranks) / B;
    ShardedModel sharded(gpt2_config(),
                         {.strategy = stage.strategy,
                          .shard_group_size = 2,
                          .patterns = {.freeze = {"*wpe*"}},
                          .batch = {B, T},
                          .plan = {.micro_batches = batches},
                          .optimizer = choice.options},
                         world);
    Executor& executor = sharded.allocate(*device);
    const std::vector<ShardState> states = executor.states();
    Progress progress;
    if (stage.from.empty()) {
      executor.initialize_parameters(3);
    } else {
      const auto reader = CheckpointReader::open(stage.from);
      reader->verify(world.rank(), world.size());
      progress = reader->header().progress;
      load_states(*reader, sharded.model().parameters(), sharded.layout(), sharded.shard(), states);
    }
    executor.publish_parameters();
    for (std::uint64_t u = 0; u < stage.updates; ++u) {
      ++progress.update;
      const UpdateResult update = executor.run_update(
          [&](std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
            read_tokens(progress.update, static_cast<std::size_t>(world.rank()), micro, batches, inputs, targets);
          },
          {.update = progress.update, .learning_rate = 0.01, .clip_norm = 1, .tokens = sequences * T});
      if (world.rank() == 0) result.losses.push_back(update.loss);
    }
    if (world.rank() == 0)
      for (std::size_t u = 0; u < sharded.layout().units().size(); ++u)
        result.weights.push_back(executor.parameters().values(u));
    if (stage.to.empty()) return;
    const CheckpointHeader header = {.model = sharded.transformer().config(),
                                     .progress = progress,
                                     .strategy = stage.strategy,
                                     .world_size = world.size(),
                                     .shards = sharded.layout().shards(),
                                     .units = {sharded.layout().units().begin(), sharded.layout().units().end()},
                                     .optimizer = std::string(choice.options.kind->name),
                                     .options_json = "{}",
                                     .version = "test"};
    const auto folder = save_checkpoint(stage.to, header, sharded.layout(), states, world);
    if (world.rank() == 0) result.step = folder;
  });
  return result;
}

Shape shape_of_state(const CheckpointReader& reader, const std::string& state, const std::string& name) {
  Shape shape = reader.shape(name);
  if (state == "row_var") shape.back() = 1;
  if (state == "col_var") shape.front() = 1;
  return shape;
}

/// The number of elements of all states that differ, and that are not zero.
struct Comparison {
  std::size_t different = 0, not_zero = 0;
};

Comparison compare(const fs::path& a, const fs::path& b) {
  const auto first = CheckpointReader::open(a), second = CheckpointReader::open(b);
  BOOST_TEST(first->states() == second->states(), boost::test_tools::per_element());
  Comparison result;
  for (const std::string& state : first->states())
    for (const std::string& name : first->names()) {
      BOOST_TEST(first->has_state(state, name) == second->has_state(state, name));
      if (!first->has_state(state, name)) continue;
      const std::size_t n = numel(shape_of_state(*first, state, name));
      std::vector<float> x(n), y(n);
      first->read_state(state, name, {0, n}, x.data());
      second->read_state(state, name, {0, n}, y.data());
      for (std::size_t i = 0; i < n; ++i) {
        result.different += std::memcmp(&x[i], &y[i], sizeof x[i]) != 0;
        result.not_zero += state != "parameters" && x[i] != 0;
      }
    }
  return result;
}

}  // namespace

BOOST_DATA_TEST_CASE(a_resumed_run_has_the_same_bits, boost::unit_test::data::make(choices()), choice) {
  for (const char* strategy : {"full", "none", "hybrid"}) {
    const TemporaryFolder folder;
    const Result saved = run_stage(choice, {4, strategy, {}, 2, folder / "saves"});
    const Result at_once = run_stage(choice, {4, strategy, {}, 4, {}}),
                 resumed = run_stage(choice, {4, strategy, saved.step, 2, {}});
    BOOST_TEST((resumed.weights == at_once.weights), strategy);
    BOOST_TEST((resumed.losses == std::vector<double>(at_once.losses.begin() + 2, at_once.losses.end())), strategy);
    BOOST_TEST((at_once.losses[2] != at_once.losses[1]));
  }
}

BOOST_DATA_TEST_CASE(states_go_into_whole_tensors, boost::unit_test::data::make(choices()), choice) {
  const TemporaryFolder folder;
  const auto reader = CheckpointReader::open(run_stage(choice, {3, "full", {}, 2, folder / "saves"}).step);
  if (reader->states().size() < 2) {
    CHECK_CONTAINS(message_of([&] { consolidate(*reader, folder / "out", {.with_optimizer = true}); }),
                   "leave out `states of the optimizer`");
    return;
  }
  for (const auto format : {&hdf5_format(), &safetensors_format()}) {
    const fs::path out = folder / (format == &hdf5_format() ? "model.h5" : "model");
    consolidate(*reader, out, {.format = format, .type = DType::bf16, .max_shard_bytes = 2000, .with_optimizer = true});
    const auto result = open_tensor_source(out);
    BOOST_TEST(result->names().size() == reader->names().size());
    BOOST_TEST(result->states().size() == reader->states().size());
    for (const std::string& state : reader->states())
      for (const std::string& name : reader->names())
        BOOST_TEST(result->has_state(state, name) == reader->has_state(state, name));
    compare_sources(*reader, *result, DType::bf16, nullptr, reader->states());
    BOOST_TEST(!result->has_state(reader->states().back(), "transformer.wpe.weight"));  // it was not trained
    CHECK_CONTAINS(message_of([&] { result->state_shape(reader->states().back(), "transformer.wpe.weight"); }), "wpe.weight");
  }
}

BOOST_DATA_TEST_CASE(state_goes_to_any_world_size, boost::unit_test::data::make(choices()), choice) {
  const TemporaryFolder folder;
  const Result four = run_stage(choice, {4, "full", {}, 3, folder / "four"}),
               three = run_stage(choice, {3, "none", four.step, 0, folder / "three"}),
               one = run_stage(choice, {1, "optim", three.step, 0, folder / "one"}),
               hybrid = run_stage(choice, {4, "hybrid", one.step, 0, folder / "hybrid"});
  for (const fs::path& other : {three.step, one.step, hybrid.step}) {
    const Comparison found = compare(four.step, other);
    BOOST_TEST(found.different == 0u, other);
    BOOST_TEST(found.not_zero > 50u);
  }
  // Later losses are those of a run that never stopped, to rounding.
  const Result after = run_stage(choice, {1, "full", one.step, 2, {}}),
               before = run_stage(choice, {4, "full", four.step, 2, {}});
  for (std::size_t u = 0; u < 2; ++u) BOOST_TEST(std::abs(after.losses[u] - before.losses[u]) < 1e-5);
}

BOOST_AUTO_TEST_CASE(factors_are_stored_once_in_pytorchs_shapes) {
  const TemporaryFolder folder;
  const Choice adafactor = {{.kind = &adafactor_optimizer()}, "adafactor"};
  const fs::path step = run_stage(adafactor, {3, "full", {}, 1, folder / "saves"}).step;
  const std::string index = step / "checkpoint.h5";
  const std::string name = "transformer.h.1.mlp.c_fc.weight";  // [12, 29]
  BOOST_CHECK((test::read_plain_hdf5(index, "row_var/" + name).shape == Shape{12, 1}));
  BOOST_CHECK((test::read_plain_hdf5(index, "col_var/" + name).shape == Shape{1, 29}));
  BOOST_CHECK((test::read_plain_hdf5(index, "variance/transformer.ln_f.weight").shape == Shape{12}));
  BOOST_TEST(!test::plain_hdf5_has(index, "variance/" + name));
  BOOST_TEST(!test::plain_hdf5_has(index, "row_var/transformer.wpe.weight"));  // frozen
  for (const float row : test::read_plain_hdf5(index, "row_var/" + name).values) BOOST_TEST(row > 0);
}
