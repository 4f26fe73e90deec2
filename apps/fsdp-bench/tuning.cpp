#include "fsdp-bench/bench.hpp"

#include <algorithm>
#include <cstdio>
#include <set>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/clean_text.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "comm/agree.hpp"
#include "device/gpu_figures.hpp"
#include "engine/memory.hpp"
#include "files/json.hpp"
#include "kernels/threads.hpp"
#include "plan/placement.hpp"

namespace fsdp {

namespace {

constexpr double worth = 1.05;  // larger batches are measured while doubling the batch multiplies tokens/s by more than this
constexpr std::size_t most_rows = 1 << 22;  // the most tokens in a micro-batch; larger micro-batches are not tried

struct Setting {
  std::string strategy;
  bool recompute = false;
  std::size_t B = 0;
  int shard_group_size = 0;      // 0 if the strategy is not hybrid, or the user gave no size
  std::size_t memory_bytes = 0;  // of a rank, as planned for a training run
  bool fits = false;
  double seconds = 0, tokens_per_second = 0;  // of an update; 0 if not measured

  std::string options() const {
    return format("--sharding-strategy {}{} --batch-size {}{}", strategy,
                  shard_group_size > 0 ? format(" --shard-group-size {}", shard_group_size) : std::string(), B,
                  recompute ? " --checkpoint-activations" : "");
  }
};

/// Returns the strategies to measure, without those that equal another one: on a single node, `hybrid` equals `full`.
std::vector<std::string> strategies_to_try(const BenchOptions& options, Communicator& world, int ranks_of_node) {
  const int group = options.sharding.shard_group_size > 0 ? options.sharding.shard_group_size : ranks_of_node;
  if (!options.every_strategy) return {options.sharding.strategy};
  std::vector<std::string> names;
  std::set<std::tuple<int, Place, Place, Place, Place>> seen;
  for (const Placement& p : placements()) {
    if (p.axis == ShardAxis::group && world.size() % group != 0) continue;
    const int shard = mesh_shape(p, world.size(), group).shard;
    const bool is_new = shard > 1
                            ? seen.emplace(shard, p.parameters_at_rest, p.parameters_forward_to_backward,
                                           p.gradients_between_micro_batches, p.optimizer_state)
                                  .second
                            : seen.emplace(1, Place::whole, Place::whole, Place::whole, Place::whole).second;  // nothing is
                                                                                                               // sharded
    if (is_new) names.emplace_back(p.name);
  }
  return names;
}

/// Returns the memory that a rank may use: --memory-limit, or its part of the available memory.
std::size_t memory_limit(const BenchOptions& options, Communicator& world, Group& node, const Device& device) {
  std::size_t limit = options.memory_limit;
  if (limit == 0 && is_host(device.kind())) limit = available_memory_bytes() / static_cast<std::size_t>(node.size());
  agree(world, [&] {
    if (limit > 0) return;
    const GpuFigures* const figures = figures_of(device.description());
    if (!figures)
      throw UserError(format("the memory of this GPU is not known ({} is not in the table of GPUs); give --memory-limit SIZE",
                             device.description()));
    limit = static_cast<std::size_t>(figures->memory_bytes);
  });
  return world.min(limit);
}

/// Returns the memory that a rank of a training run needs, with these options and asynchronous saves.
std::size_t memory_of(const BenchOptions& options, const ShardingOptions& sharding, const ShardedModel& sharded,
                      Communicator& world, Communicator& node) {
  EngineOptions engine;
  engine.sharding = sharding;
  engine.comm = options.comm;
  return memory_account(engine, sharded, world, node, {.snapshot = true}).total();
}

/// Returns the median time of options.steps updates, after one that is not counted.
double measure(const BenchOptions& options, ShardedModel& sharded, BatchShape batch, Communicator& world, Device& device) {
  Executor& executor = sharded.allocate(device, options.execution, options.comm);
  executor.initialize_parameters(1);
  executor.publish_parameters();
  const BatchReader random_tokens = random_batches(batch, sharded.transformer().config().vocab_size, world.rank());
  std::vector<double> seconds;
  for (std::size_t update = 1; update <= options.steps + 1; ++update)
    seconds.push_back(time_update(executor, random_tokens, update, tokens_of_update(options.sharding, batch, world), world));
  seconds.erase(seconds.begin());
  double result = median(seconds);
  world.broadcast(&result, sizeof result, 0);  // all ranks must decide by the same value, but measure different times
  return result;
}

nlohmann::json to_json(const Setting& s) {
  const auto number = [&](double x) { return s.seconds > 0 ? nlohmann::json(x) : nlohmann::json(); };
  return {{"strategy", s.strategy},
          {"checkpoint_activations", s.recompute},
          {"batch_size", s.B},
          {"tokens_per_second", number(s.tokens_per_second)},
          {"ms", number(1e3 * s.seconds)},
          {"memory_bytes", s.memory_bytes},
          {"fits", s.fits}};
}

/// Describes what recomputation costs in time and saves in memory, for the largest batch that was measured with and without it.
/// Returns an empty string if there is no such batch.
std::string describe_recomputation(const std::vector<Setting>& settings) {
  const Setting *with = nullptr, *without = nullptr;
  for (const Setting& a : settings)
    for (const Setting& b : settings)
      if (a.recompute && !b.recompute && a.strategy == b.strategy && a.B == b.B && a.seconds > 0 && b.seconds > 0 &&
          (!with || a.B > with->B))
        with = &a, without = &b;
  if (!with) return {};
  return format(
      "recomputing blocks: under {}, with batch size {}, an update takes {:.2f} times as long, and a rank needs {} instead of "
      "{}\n",
      with->strategy, with->B, with->seconds / without->seconds, format_bytes(static_cast<double>(with->memory_bytes)),
      format_bytes(static_cast<double>(without->memory_bytes)));
}

}  // namespace

std::string bench_tuning(const BenchOptions& options, Communicator& world, Communicator& node, Device& device) {
  const std::size_t limit = memory_limit(options, world, node, device);
  TransformerConfig config;
  agree(world, [&] {
    config = config_of(options);
    if (const int group = options.sharding.shard_group_size; group > 0)
      mesh_shape(find_placement("hybrid"), world.size(), group);
    require_places(options.sharding.plan, device.kind());
  });
  const bool only_recompute = options.sharding.plan.checkpoint_activations;
  std::vector<Setting> settings;
  for (const std::string& strategy :
       strategies_to_try(options, world, static_cast<int>(world.max(static_cast<std::size_t>(node.size())))))
    for (const bool recompute : {false, true}) {
      if (only_recompute && !recompute) continue;
      double last_rate = 0;
      bool pays = true, fits = true;
      // After doubling no longer pays, larger batches are only planned, to find the largest that fits.
      for (std::size_t B = options.sharding.batch.B; fits && B * options.sharding.batch.T <= most_rows; B *= 2) {
        ShardingOptions sharding = options_for(device.kind(), options.sharding);
        sharding.strategy = strategy;
        sharding.batch.B = B;
        sharding.plan.checkpoint_activations = recompute;
        agree(world, [&] { check_sharding(config, sharding, world.size()); });
        ShardedModel sharded(config, sharding, world, traits_for(options, config, sharding, device, world));
        Setting setting{.strategy = strategy, .recompute = recompute, .B = B};
        if (sharded.placement().axis == ShardAxis::group) setting.shard_group_size = sharding.shard_group_size;
        setting.memory_bytes = world.max(memory_of(options, sharding, sharded, world, node));
        setting.fits = fits = setting.memory_bytes <= limit;
        if (fits && pays) {
          setting.seconds = measure(options, sharded, sharding.batch, world, device);
          setting.tokens_per_second = tokens_of_update(sharding, sharding.batch, world) / setting.seconds;
          pays = setting.tokens_per_second > worth * last_rate;
          last_rate = setting.tokens_per_second;
        }
        if (setting.seconds > 0 || !fits) settings.push_back(setting);
      }
    }
  const auto fastest = std::max_element(settings.begin(), settings.end(), [](const Setting& a, const Setting& b) {
    return a.tokens_per_second < b.tokens_per_second;
  });
  const bool any = fastest != settings.end() && fastest->seconds > 0;
  const std::size_t T = options.sharding.batch.T, K = options.sharding.plan.micro_batches;
  // Measurements are printed even if the command fails.
  const auto result = [&](const std::string& text) {
    if (any) return text;
    if (world.rank() == 0) print_raw(stdout, options.json ? text : clean_lines(text));
    throw CollectiveError(
        format("nothing fits {} (the smallest batch needs more memory); use more ranks, or a smaller --tokens-per-sample",
               format_bytes(static_cast<double>(limit))),
        0, true, exit_code::failed);
  };
  if (options.json) {
    nlohmann::json json = {{"arch", model_of(options)},   {"device", device.description()},
                           {"ranks", world.size()},       {"precision", name_of(options.sharding.types.parameter)},
                           {"tokens_per_sample", T},      {"update_freq", K},
                           {"memory_limit_bytes", limit}, {"fastest", any ? to_json(*fastest) : nlohmann::json()}};
    for (const Setting& s : settings) json["settings"].push_back(to_json(s));
    return result(json_text(json) + "\n");
  }
  std::string text = format(
      "# {}, {}, {}, sequences of {} tokens, {} per update; a rank may use {}\n{:<15} {:>9} {:>10} {:>10} "
      "{:>10} {:>10}\n",
      model_of(options), plural(world.size(), "rank"), name_of(options.sharding.types.parameter), T,
      plural(K, "micro-batch", "micro-batches"), format_bytes(static_cast<double>(limit)), "# strategy", "recompute",
      "batch-size", "tokens/s", "ms", "MiB");
  for (const Setting& s : settings) {
    const double mib = static_cast<double>(s.memory_bytes) / (1 << 20);
    const std::string row = format("{:<15} {:>9} {:>10}", s.strategy, s.recompute ? "yes" : "no", s.B);
    text += s.seconds > 0 ? format("{} {:>10.0f} {:>10.1f} {:>10.0f}\n", row, s.tokens_per_second, 1e3 * s.seconds, mib)
                          : format("{} {:>10} {:>10} {:>10.0f}  does not fit\n", row, "-", "-", mib);
  }
  text += describe_recomputation(settings);
  if (any) text += format("the fastest that fits: {}\n", fastest->options());
  return result(text);
}

}  // namespace fsdp
