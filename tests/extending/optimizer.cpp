// Adds the optimizer of docs/extending-optimizer.md from outside the library: RMSprop, in rmsprop.cpp.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <map>
#include <mutex>
#include <regex>

#include "checkpoint/support.hpp"
#include "kernels/threads.hpp"
#include "options/options.hpp"
#include "run/sharded_model.hpp"
#include "support/files.hpp"

using namespace fsdp;
using namespace fsdp::test;

const Optimizer& rmsprop_optimizer();

namespace {

constexpr double rate = 0.01, decay = 0.1;
constexpr std::size_t T = 6, sequences = 12;

OptimizerOptions rmsprop(double momentum, DType state_type = DType::f32) {
  return {.kind = &rmsprop_optimizer(),
          .beta2 = 0.9,
          .eps = 1e-8,
          .weight_decay = decay,
          .momentum = momentum,
          .state_type = state_type};
}

struct Job {
  OptimizerOptions optimizer;
  int ranks = 1;
  std::string strategy = "full";
  std::size_t updates = 4;
  std::filesystem::path from = {}, to = {};  // the step folder to resume from; the save folder
};

using Tensors = std::map<std::string, std::vector<float>>;  // by parameter

struct Outcome {
  std::vector<Tensors> weights, gradients;  // before each update and after the last; of each update
  std::map<std::string, Tensors> states;    // after the last update, by name
  std::filesystem::path step;
};

/// Copies this rank's parts of a state into the whole tensors. Ranks take turns, because several may have the same
/// part.
void collect(Tensors& whole, const ShardedModel& sharded, const ShardState& state) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (std::size_t u = 0; u < sharded.layout().units().size(); ++u)
    for (const Slice& slice : sharded.layout().slices(u, sharded.shard()))
      if (!state.units[u].empty())
        state.read(u, slice.shard_offset,
                   std::span(whole.at(sharded.model().parameters()[slice.parameter].name))
                       .subspan(slice.range.begin, slice.range.size()));
}

Outcome run(const Job& job) {
  Outcome outcome;
  Tensors empty;
  for (const Parameter& parameter : list_parameters(gpt2_config()).parameters)
    empty[parameter.name].resize(numel(parameter.shape));
  outcome.weights.assign(job.updates + 1, empty);
  outcome.gradients.assign(job.updates, empty);
  for (const std::string& state : states_of(job.optimizer, list_parameters(gpt2_config()).parameters))
    outcome.states[state] = empty;
  run_ranks(job.ranks, [&](Communicator& world) {
    kernels::set_threads(1);
    const auto device = make_cpu_device();
    const std::size_t per_rank = sequences / static_cast<std::size_t>(world.size());
    ShardedModel sharded(gpt2_config(),
                         {.strategy = job.strategy, .shard_group_size = 2, .batch = {per_rank, T}, .optimizer = job.optimizer},
                         world);
    Executor& executor = sharded.allocate(*device);
    const std::vector<ShardState> states = executor.states();
    Progress progress;
    if (job.from.empty()) {
      executor.initialize_parameters(3);
    } else {
      const auto reader = CheckpointReader::open(job.from);
      progress = reader->header().progress;
      load_states(*reader, sharded.model().parameters(), sharded.layout(), sharded.shard(), states);
    }
    executor.publish_parameters();
    for (std::size_t u = 0; u < job.updates; ++u) {
      ++progress.update;
      collect(outcome.weights[u], sharded, executor.parameters());
      const auto read = [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) {
        const std::size_t first = static_cast<std::size_t>(world.rank()) * per_rank;
        for (std::size_t i = 0; i < per_rank * T; ++i) {
          const std::size_t token = (progress.update * sequences + first) * T + i;
          inputs[i] = static_cast<std::int32_t>(token * token % 1009 % 37);
          targets[i] = static_cast<std::int32_t>((token + 1) * (token + 1) % 1009 % 37);
        }
      };
      executor.run_update(read, {.update = progress.update, .learning_rate = rate, .tokens = sequences * T});
      collect(outcome.gradients[u], sharded, executor.gradients());
      world.barrier();
    }
    collect(outcome.weights[job.updates], sharded, executor.parameters());
    for (const ShardState& state : executor.optimizer_states()) collect(outcome.states.at(state.name), sharded, state);
    world.barrier();
    if (job.to.empty()) return;
    const CheckpointHeader header = {.model = sharded.transformer().config(),
                                     .progress = progress,
                                     .strategy = job.strategy,
                                     .world_size = world.size(),
                                     .shards = sharded.layout().shards(),
                                     .units = {sharded.layout().units().begin(), sharded.layout().units().end()},
                                     .optimizer = "rmsprop",
                                     .options_json = "{}",
                                     .version = "test"};
    const auto folder = save_checkpoint(job.to, header, sharded.layout(), states, world);
    if (world.rank() == 0) outcome.step = folder;
  });
  return outcome;
}

}  // namespace

BOOST_AUTO_TEST_CASE(an_optimizer_is_known_once_it_is_added) {
  BOOST_TEST(find_rule("rmsprop_momentum") == nullptr);
  add_optimizer(rmsprop_optimizer());
  BOOST_TEST(&find_optimizer("rmsprop") == &rmsprop_optimizer());
  BOOST_TEST(find_rule("rmsprop_momentum")->states.size() == 2u);
  BOOST_CHECK_THROW(add_optimizer(rmsprop_optimizer()), InternalError);
  // Another optimizer may not use an existing rule's name.
  static const Rule impostor = {.name = "adam",
                                .update = [](Stream&, const UnitMemory&, const OptimizerOptions&, const OptimizerStep&) {}};
  static const Optimizer other = {.name = "other", .rules = {&impostor}};
  BOOST_CHECK_THROW(add_optimizer(other), InternalError);
}

BOOST_AUTO_TEST_CASE(options_and_their_help_follow_from_its_row) {
  const auto parse = [](std::vector<const char*> words) {
    words.insert(words.begin(),
                 {"program", "--data", "train.bin", "--arch", "gpt2", "--max-update", "9", "--optimizer", "rmsprop"});
    return parse_train_command(static_cast<int>(words.size()), words.data(), 1);
  };
  const OptimizerOptions defaults = parse({}).options.sharding.optimizer;
  BOOST_TEST(defaults.kind == &rmsprop_optimizer());
  BOOST_TEST((defaults.beta2 == 0.99 && defaults.eps == 1e-8 && defaults.weight_decay == 0 && defaults.momentum == 0));
  BOOST_TEST(parse({"--momentum", "0.9"}).options.sharding.optimizer.momentum == 0.9);
  CHECK_CONTAINS(message_of([&] { parse({"--amsgrad"}); }), "--optimizer rmsprop does not read it");
  std::string help = parse({"--help", "all"}).answer.value();  // in lines of up to 100 columns
  help = std::regex_replace(help, std::regex("\\s+"), " ");
  CHECK_CONTAINS(help, "|rmsprop");
  CHECK_CONTAINS(help, "lion and rmsprop (0.9,0.99)");
  CHECK_CONTAINS(help, "sgd, muon and rmsprop");
}

// Computes PyTorch's formulas in double, from the gradients of the run.
BOOST_AUTO_TEST_CASE(it_is_what_pytorch_documents) {
  for (const double momentum : {0.0, 0.8}) {
    const OptimizerOptions options = rmsprop(momentum);
    const Outcome run_of_one = run({options});
    const std::vector<Parameter> parameters = list_parameters(gpt2_config()).parameters;
    double largest = 0;
    std::size_t compared = 0;
    for (const Parameter& parameter : parameters)
      for (std::size_t i = 0; i < numel(parameter.shape); ++i) {
        double square = 0, buffer = 0, p = double{run_of_one.weights[0].at(parameter.name)[i]};
        for (std::size_t u = 0; u < run_of_one.gradients.size(); ++u) {
          const double g = double{run_of_one.gradients[u].at(parameter.name)[i]} + (parameter.decayed ? decay : 0) * p;
          square = 0.9 * square + 0.1 * g * g;
          const double step = g / (std::sqrt(square) + options.eps);
          buffer = momentum * buffer + step;
          p -= rate * (momentum == 0 ? step : buffer);
          const double mine = double{run_of_one.weights[u + 1].at(parameter.name)[i]};
          // A gradient near 0 is only rounding error, and so is its root mean square. The step then may have any size
          // up to the full one.
          if (std::abs(g) < 1e-5) break;
          largest = std::max(largest, std::abs(mine - p));
          ++compared;
        }
      }
    BOOST_TEST(largest < 2e-6);  // four steps of up to 0.03 on numbers near 1, in fp32
    BOOST_TEST(compared > 5000u);
  }
}

BOOST_AUTO_TEST_CASE(no_strategy_changes_a_bit) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const int ranks : {1, 2, 3, 4}) {
      const Outcome full = run({rmsprop(0.8, type), ranks});
      for (const char* strategy : {"grad-op", "optim", "none"})
        BOOST_CHECK_MESSAGE(run({rmsprop(0.8, type), ranks, strategy}).weights == full.weights,
                            ranks << " ranks, " << strategy << ", states in " << name_of(type));
      if (ranks % 2 == 0)
        BOOST_CHECK_MESSAGE(run({rmsprop(0.8, type), ranks, "hybrid"}).weights == full.weights, ranks << " ranks, hybrid");
    }
}

BOOST_AUTO_TEST_CASE(its_state_goes_through_checkpoints) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const TemporaryFolder folder;
    const OptimizerOptions options = rmsprop(0.8, type);
    const Outcome whole = run({.optimizer = options, .ranks = 3, .updates = 4});
    const Outcome half = run({.optimizer = options, .ranks = 3, .updates = 2, .to = folder / "half"});
    const auto reader = CheckpointReader::open(half.step);
    BOOST_TEST(reader->header().optimizer == "rmsprop");
    BOOST_TEST((reader->states() == std::vector<std::string>{"parameters", "square_avg", "momentum_buffer"}));
    const Outcome rest = run({.optimizer = options, .ranks = 3, .updates = 2, .from = half.step});
    BOOST_TEST((rest.weights.back() == whole.weights.back()));
    BOOST_TEST((rest.states == whole.states));
    // The state is the same at another number of ranks.
    const Outcome loaded = run({.optimizer = options, .ranks = 2, .strategy = "optim", .updates = 0, .from = half.step});
    BOOST_TEST((loaded.states == half.states));
    BOOST_TEST((loaded.weights.back() == half.weights.back()));
    for (const auto& [state, tensors] : loaded.states)
      for (const auto& [name, values] : tensors)
        BOOST_TEST(std::any_of(values.begin(), values.end(), [](float x) { return x != 0; }), state << " of " << name);
  }
}

// The page contains the compiled file.
BOOST_AUTO_TEST_CASE(the_document_shows_the_whole_code) {
  const std::filesystem::path tests = std::filesystem::path(FSDP_TEST_DATA).parent_path();
  const std::string document = read_file(tests.parent_path() / "docs" / "extending-optimizer.md");
  BOOST_TEST(document.find("```cpp\n" + read_file(tests / "extending" / "rmsprop.cpp") + "```\n") != std::string::npos);
}
