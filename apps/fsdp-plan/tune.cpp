#include "fsdp-plan/tune.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/timer.hpp"
#include "fsdp-plan/prediction_notes.hpp"
#include "machine/compute_device.hpp"

namespace fsdp {

namespace {

constexpr std::size_t shown_settings = 10;

using Words = std::vector<std::pair<std::string, std::string>>;

bool is_for_gpus(const PlanTable& table) { return !is_host(table.model->device().kind); }

struct Strategy {
  const Placement* placement;
  int group;
};
/// The strategies that differ on this cluster. Shard groups are parts of a node, or whole nodes.
std::vector<Strategy> strategies_to_try(const PlanTableOptions& o) {
  const int ranks = o.cluster.ranks(), per_node = o.cluster.ranks_per_node;
  if (ranks == 1) {  // all strategies are equal
    const Placement& own = find_placement(o.train.sharding.strategy);
    return {{&own, own.axis == ShardAxis::group ? 1 : 0}};
  }
  std::vector<Strategy> all;
  for (const Placement& placement : placements())
    if (placement.axis != ShardAxis::group)
      all.push_back({&placement, 0});
    else
      for (int group = 2; group < ranks; ++group)
        if (ranks % group == 0 && (per_node % group == 0 || group % per_node == 0)) all.push_back({&placement, group});
  return all;
}

/// The places that differ on this kind of device; the device first.
std::vector<StatePlaces> places_to_try(const PlanTable& table) {
  std::vector<StatePlaces> all = {{}};
  if (!is_for_gpus(table)) return all;
  all.push_back({nullptr, &spaces::host, &spaces::host});
  all.push_back({&spaces::host, &spaces::host, &spaces::host});
  if (const StatePlaces& own = table.options.train.sharding.plan.places; own.on_disk()) all.push_back(own);
  return all;
}

/// Why the kernels of fsdp compute attention instead of cuDNN.
std::string why_not_cudnn(const PlanTable& table) {
  const TrainOptions& train = table.options.train;
  return plan_attention(AttentionBackend::cudnn, table.model->config(), train.sharding, train.attention_dropout,
                        table.model->device().kind)
      .why;
}

bool recomputes_all(const TunedOptions& tuned) { return tuned.recompute >= Recompute::all; }

/// Returns the options with those of `tuned`, as if a command line had set them.
PlanTableOptions with(PlanTableOptions o, const TunedOptions& tuned) {
  TrainOptions& train = o.train;
  ShardingOptions& sharding = train.sharding;
  PlanOptions& plan = sharding.plan;
  sharding.strategy = tuned.placement->name, sharding.shard_group_size = tuned.shard_group_size;
  sharding.batch.B = tuned.batch_size, plan.micro_batches = tuned.micro_batches;
  train.total_batch_size = tuned.batch_size * tuned.micro_batches * static_cast<std::size_t>(o.cluster.ranks());
  train.attention_backend = tuned.attention;
  plan.places = tuned.places;
  plan.checkpoint_activations = recomputes_all(tuned);
  plan.checkpoint_policy = tuned.checkpoint_policy, plan.checkpoint_every = tuned.checkpoint_every;
  plan.recomputed_blocks = tuned.recomputed_blocks, plan.offloaded_inputs = tuned.offloaded_inputs;
  train.recompute_num_layers = format("{}", tuned.recomputed_blocks);
  return o;
}

Bottlenecks bottlenecks_of_chosen(const PlanTable& table) {
  const PlanRow& row = table.chosen();
  const bool recompute = recomputes(table.options);
  return find_bottlenecks(*row.variant(recompute).model, options_of_chosen(table, recompute), row.mesh, table.options.cluster,
                          *table.rates, table.options.disk(), table.options.slow);
}

TunedOptions own_options(const PlanTable& table) {
  const PlanTableOptions& o = table.options;
  const PlanRow& row = table.chosen();
  const bool recompute = recomputes(o);
  const PlanVariant& variant = row.variant(recompute);
  const ShardingOptions sharding = options_of_chosen(table, recompute);
  const PlanOptions& plan = sharding.plan;
  return {.placement = row.placement,
          .shard_group_size = sharding.shard_group_size,
          .batch_size = sharding.batch.B,
          .micro_batches = plan.micro_batches,
          .attention = o.train.attention_backend,
          .places = plan.places,
          .recompute = !recompute                   ? Recompute::none
                       : recomputes_first_blocks(o) ? Recompute::fewest
                       : plan.offloaded_inputs > 0  ? Recompute::all_from_host
                                                    : Recompute::all,
          .recomputed_blocks = variant.recomputed_blocks,
          .offloaded_inputs = variant.offloaded_inputs,
          .checkpoint_policy = plan.checkpoint_policy,
          .checkpoint_every = plan.checkpoint_every,
          .memory = variant.memory.total(),
          .on_host = is_host(variant.memory.device) ? 0 : variant.memory.on_host(),
          .fits = table.fits(variant),
          .step = variant.step,
          .tokens_per_second = variant.tokens_per_second,
          .mfu = variant.mfu};
}

/// The user's options that the search varies, and those that need these, if `best` does not have them.
std::vector<std::string> left_out(const PlanTableOptions& o, const TunedOptions& best) {
  const Words words = words_of(best);
  std::vector<std::string> names;
  for (const std::string& name : o.varied)
    if (!std::ranges::count(words, name, &Words::value_type::first) && !(name.starts_with("--nvme-") && best.places.on_disk()))
      names.push_back(name);
  return names;
}

class Search {
 public:
  explicit Search(const PlanTable& table)
      : table_(table), options_(table.options), strategies_(strategies_to_try(options_)), places_(places_to_try(table)) {}

  Tuning run() {
    const Timer timer;
    tuning_.own = own_options(table_);
    tuning_.own.fits = excess(tuning_.own) <= 1;
    const std::size_t own_rows = options_.train.sharding.batch.B * options_.train.sharding.plan.micro_batches;
    constexpr std::size_t most_tokens = std::size_t{1} << 30;  // as --batch-size says
    const std::size_t most_rows =
        std::min(options_.keeps_update ? own_rows : most_tokens, most_tokens / options_.train.sharding.batch.T);
    for (std::size_t B = 1; B <= most_rows; B = options_.keeps_update ? B + 1 : 2 * B) {
      if (options_.keeps_update && own_rows % B != 0) continue;
      const bool some_fit = try_batch(B, options_.keeps_update ? own_rows / B : 1);
      if (!options_.keeps_update && !some_fit) break;  // a larger one needs more memory
    }
    // Of those that differ by a millionth at most, which is rounding, the one with the least memory is first.
    const auto key = [](const TunedOptions& t) {
      return std::tuple(-std::llround(1e6 * std::log(t.tokens_per_second)), t.memory, t.on_host);
    };
    std::ranges::stable_sort(fitting_, {}, key);
    // The fewest blocks can be none or all: then two combinations are the same.
    const auto same = [&](const TunedOptions& a, const TunedOptions& b) {
      const auto others = [](const TunedOptions& t) {
        return std::tuple(t.placement, t.shard_group_size, t.batch_size, t.attention, t.places.parameters, t.places.optimizer);
      };
      return key(a) == key(b) && others(a) == others(b);
    };
    const auto doubles = std::ranges::unique(fitting_, same);
    fitting_.erase(doubles.begin(), doubles.end());
    if (fitting_.size() > shown_settings) fitting_.resize(shown_settings);
    tuning_.best = std::move(fitting_);
    if (!tuning_.best.empty()) {
      tuning_.nearest.reset();
      tuning_.left_out = left_out(options_, tuning_.best.front());
    }
    tuning_.seconds = timer.seconds();
    return std::move(tuning_);
  }

 private:
  bool try_batch(std::size_t B, std::size_t K) {
    bool some_fit = false;
    for (const AttentionBackend attention : {AttentionBackend::own, AttentionBackend::cudnn}) {
      TunedOptions tuned;
      tuned.batch_size = B, tuned.micro_batches = K, tuned.attention = attention;
      tuned.placement = strategies_.front().placement, tuned.shard_group_size = strategies_.front().group;
      const PlanTable start = start_plan_table(with(options_, tuned));
      if (attention == AttentionBackend::cudnn && start.model->device().cudnn_head_size == 0) {
        if (B == 1 && is_for_gpus(start)) tuning_.without_cudnn = why_not_cudnn(start);
        continue;
      }
      for (const Strategy& strategy : strategies_) {
        tuned.placement = strategy.placement, tuned.shard_group_size = strategy.group;
        some_fit |= try_memory(start, tuned);
      }
    }
    return some_fit;
  }

  /// Tries places and recomputation. If a rank can keep all state and all activations on its device, the other combinations
  /// only do more work. (Copies may still wait for less if blocks are recomputed, so what is offloaded is tried in all ways.)
  bool try_memory(const PlanTable& start, TunedOptions tuned) {
    tuning_.combinations += 4 * places_.size();
    const PlanOptions& plan = options_.train.sharding.plan;
    bool some_fit = false;
    for (const StatePlaces& places : places_) {
      tuned.places = places;
      for (const Recompute recompute : {Recompute::none, Recompute::fewest, Recompute::all, Recompute::all_from_host}) {
        tuned.recompute = recompute;
        tuned.offloaded_inputs = recompute == Recompute::all_from_host ? all_inputs : 0;
        const bool all = recomputes_all(tuned);
        tuned.checkpoint_policy = all ? plan.checkpoint_policy : CheckpointPolicy::block;
        tuned.checkpoint_every = all ? plan.checkpoint_every : 1;
        if (tuned.offloaded_inputs > 0 && (!is_for_gpus(start) || plan.checkpoint_policy == CheckpointPolicy::selective))
          continue;
        if (!try_one(start, tuned)) continue;
        some_fit = true;
        if (recompute == Recompute::none && !places.any()) return true;
      }
    }
    return some_fit;
  }

  /// Returns true if it fits.
  bool try_one(const PlanTable& start, TunedOptions tuned) {
    const PlanTableOptions o = with(options_, tuned);
    ShardingOptions sharding = options_for(start.model->device().kind, o.train.sharding);
    const MeshShape mesh = mesh_shape(*tuned.placement, o.cluster.ranks(), tuned.shard_group_size);
    try {
      check_sharding(*start.model, sharding, o.cluster.ranks());
    } catch (const UserError&) {
      return false;  // for example a batch that is too large
    }
    ++tuning_.planned;
    EngineOptions engine = o.train;
    engine.sharding = sharding;
    engine.recompute_to_fit = tuned.recompute == Recompute::fewest ? o.memory_limit : 0;
    const FittedPlan fitted = fit_plan(start.model, engine, mesh, o.cluster, {.snapshot = o.train.save.meanwhile()});
    tuned.memory = fitted.memory.total(), tuned.on_host = is_host(fitted.memory.device) ? 0 : fitted.memory.on_host();
    tuned.recomputed_blocks = sharding.plan.recomputed_blocks = fitted.recomputed_blocks;
    tuned.offloaded_inputs = sharding.plan.offloaded_inputs = fitted.offloaded_inputs;
    tuned.fits = excess(tuned) <= 1;
    if (!tuned.fits) {
      if (!tuning_.nearest || excess(tuned) < excess(*tuning_.nearest)) tuning_.nearest = tuned;
      return false;
    }
    ++tuning_.predicted;
    const auto& model = dynamic_cast<const Transformer&>(*fitted.model);
    const UpdateSimulation simulation(model, sharding, mesh, o.cluster);
    tuned.step = simulation.predict(*start.rates, o.disk(), o.slow);
    tuned.tokens_per_second = simulation.tokens_per_second(tuned.step);
    tuned.mfu = simulation.mfu(tuned.step, *start.rates);
    fitting_.push_back(tuned);
    return true;
  }

  /// Returns the memory that the options need, divided by the limit.
  double excess(const TunedOptions& t) const {
    const auto share = [](std::size_t needed, std::size_t limit) {
      return limit == 0 ? 0 : static_cast<double>(needed) / static_cast<double>(limit);
    };
    return std::max(share(t.memory, options_.memory_limit),
                    share(t.on_host * static_cast<std::size_t>(options_.cluster.ranks_per_node), options_.host_memory));
  }

  const PlanTable& table_;
  const PlanTableOptions& options_;
  const std::vector<Strategy> strategies_;
  const std::vector<StatePlaces> places_;
  std::vector<TunedOptions> fitting_;
  Tuning tuning_;
};

std::string line_of(const Words& words) {
  std::string line;
  for (const auto& [name, value] : words) line += (line.empty() ? "" : " ") + name + (value.empty() ? "" : " " + value);
  return line;
}

/// "--batch-size 4 instead of 1; --checkpoint-activations left out".
std::string changes_between(const Words& before, const Words& now) {
  std::vector<std::string> changes;
  const auto find = [](const Words& words, const std::string& name) {
    return std::ranges::find(words, name, &Words::value_type::first);
  };
  for (const auto& word : now)
    if (const auto was = find(before, word.first); was == before.end())
      changes.push_back(line_of({word}));
    else if (was->second != word.second)
      changes.push_back(format("{} instead of {}", line_of({word}), was->second));
  for (const auto& word : before)
    if (find(now, word.first) == now.end()) changes.push_back(line_of({word}) + " left out");
  return changes.empty() ? "nothing" : format("{}", fmt::join(changes, "; "));
}

std::string name_of_places(const StatePlaces& places) { return places.parameters ? "all" : places.optimizer ? "optim." : "-"; }

double host_memory_of_node(const PlanTable& table, const TunedOptions& t) {
  return static_cast<double>(t.on_host) * table.options.cluster.ranks_per_node;
}

std::string describe_memory(const PlanTable& table, const TunedOptions& t) {
  return format("{} per rank{}", format_bytes(static_cast<double>(t.memory)),
                t.on_host > 0 ? format(" and {} of a node's host", format_bytes(host_memory_of_node(table, t))) : "");
}

std::string settings_table(const PlanTable& table, const Tuning& tuning) {
  const std::size_t blocks = table.model->blocks.size();
  std::vector<std::vector<std::string>> rows = {
      {"  strategy, group", "batch", "recomputed", "attention", "offloaded", "ms", "tokens/s", "MFU", "memory", "host"}};
  for (const TunedOptions& t : tuning.best)
    rows.push_back({format("  {}{}", t.placement->name, t.shard_group_size > 0 ? format(", {}", t.shard_group_size) : ""),
                    format("{} x {}", t.batch_size, t.micro_batches),
                    t.recompute == Recompute::none     ? "-"
                    : t.recompute == Recompute::fewest ? format("{} of {}", t.recomputed_blocks, blocks)
                                                       : "all",
                    t.attention == AttentionBackend::own ? "own" : "cudnn",
                    name_of_places(t.places) + (t.offloaded_inputs == 0       ? ""
                                                : t.offloaded_inputs < blocks ? format(" + {} inputs", t.offloaded_inputs)
                                                                              : " + inputs"),
                    format("{:.1f}", 1e3 * t.step.total), format("{:.0f}", t.tokens_per_second),
                    format("{:.0f} %", 100 * t.mfu), format_bytes(static_cast<double>(t.memory)),
                    format_bytes(host_memory_of_node(table, t))});
  return lay_out(rows, 2);
}

std::string job_lines(const PlanTable& table, const std::string& options) {
  const PlanTableOptions& o = table.options;
  const bool on_gpus = is_for_gpus(table);
  return format(
      "the lines of slurm/{}.sbatch to change (docs/slurm.md); your other options go to OPTIONS or CONFIG:\n"
      "#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n{}OPTIONS=({}--precision {} {})\n",
      on_gpus ? "train-gpu" : "train", o.cluster.nodes, o.cluster.ranks_per_node,
      on_gpus ? format("#SBATCH --gpus-per-node={}\n", o.cluster.ranks_per_node) : "", on_gpus ? "--device cuda " : "",
      name_of(o.train.sharding.types.parameter), options);
}

double tokens_of_update(const PlanTable& table, const TunedOptions& t) {
  return static_cast<double>(table.options.train.sharding.batch.T * t.batch_size * t.micro_batches) *
         table.options.cluster.ranks();
}

std::string describe(const PlanTable& table, const TunedOptions& t) {
  const TrainingCost c = training_cost(table, t.step.total, tokens_of_update(table, t));
  const PlanTableOptions& o = table.options;
  const char* const device = is_for_gpus(table) ? "GPU" : "node";
  return wrapped(format(
             "{} tokens: {:.0f} updates, {:.1f} hours ({:.1f} days), {:.0f} {} hours{}{}{}", format_count(o.tokens), c.updates,
             c.hours, c.hours / 24, c.device_hours, device,
             c.kwh > 0 ? format(", {:.0f} kWh of GPUs at their power limit of {:.0f} W", c.kwh, table.rates->watts) : "",
             o.price > 0 ? format(", cost {:.2f} at {:g} for a {} hour", c.cost, o.price, device) : "",
             t.fits ? ""
                    : format("; but this job does not fit {}: a rank needs {}",
                             format_bytes(static_cast<double>(o.memory_limit)), format_bytes(static_cast<double>(t.memory))))) +
         format("\nOnly the time of updates is counted, without saves, validation and reading data{}.\n",
                c.kwh > 0 ? "; kWh without hosts and cooling" : "");
}

/// Notes about the search; those about all predictions are with the table of strategies.
std::vector<std::string> notes_of(const PlanTable& table, const Tuning& tuning) {
  std::vector<std::string> notes;
  if (!tuning.best.empty()) notes = memory_notes(table, "the best", tuning.best.front().memory);
  if (!tuning.without_cudnn.empty()) notes.push_back(format("no combination with cuDNN's attention: {}", tuning.without_cudnn));
  return notes;
}

std::string describe(const PlanTable& table, const Tuning& tuning, const Bottlenecks& bottlenecks) {
  const PlanTableOptions& o = table.options;
  const std::string limit =
      format_bytes(static_cast<double>(o.memory_limit)) +
      (o.host_memory > 0 ? format(" and {} of a host", format_bytes(static_cast<double>(o.host_memory))) : "");
  const std::size_t T = o.train.sharding.batch.T;
  std::string text =
      wrapped(format("of {} combinations, planned {} and simulated {} that fit, in {:.1f} s{}", tuning.combinations,
                     tuning.planned, tuning.predicted, tuning.seconds,
                     tuning.planned < tuning.combinations ? "; the others are impossible or only do more work" : "")) +
      "\n" +
      wrapped(o.keeps_update ? format("held constant: {} of {} tokens per update, and all options that the table does not show",
                                      plural(o.train.total_batch_size, "sequence"), T)
                             : format("held constant: sequences of {} tokens, one micro-batch per update, and "
                                      "all options that the table does not show; give --total-batch-size to "
                                      "hold the tokens of an update",
                                      T)) +
      "\n";
  if (tuning.best.empty()) {
    if (!tuning.nearest)
      return text + "nothing can be planned (every batch size is refused); change --tokens-per-sample or the batch\n";
    return text +
           wrapped(format("nothing fits {}: the combination that exceeds it least, {}, needs {}; give more ranks, a smaller "
                          "--tokens-per-sample or "
                          "more memory",
                          limit, line_of(words_of(*tuning.nearest)), describe_memory(table, *tuning.nearest))) +
           "\n";
  }
  const TunedOptions &best = tuning.best.front(), &own = tuning.own;
  const std::string options = line_of(words_of(best));
  text +=
      format("\nthe fastest that fit {}, as predicted for {}, not measured\n", limit, table.rates->machine) +
      settings_table(table, tuning) + "\n" +
      wrapped(format("your options, {}: {:.1f} ms, {:.0f} tokens/s, {}{}", line_of(words_of(own)), 1e3 * own.step.total,
                     own.tokens_per_second, describe_memory(table, own), own.fits ? "" : ", which do not fit")) +
      "\n" +
      wrapped(format("the best changes: {}", changes_between(words_of(own), words_of(best))) +
              (own.fits ? format("; {:+.0f} % tokens/s", 100 * (best.tokens_per_second / own.tokens_per_second - 1)) : "")) +
      "\n" + text_of(notes_of(table, tuning)) + describe(bottlenecks) + "\nits options, in place of yours:\n" + options + "\n" +
      (tuning.left_out.empty() ? ""
                               : wrapped(format("leave out these of yours: {}", fmt::join(tuning.left_out, ", "))) + "\n") +
      job_lines(table, options);
  if (o.tokens > 0) text += "\n" + describe(table, best);
  return text;
}

nlohmann::json training_json(const PlanTable& table, const TunedOptions& t) {
  const TrainingCost c = training_cost(table, t.step.total, tokens_of_update(table, t));
  const bool on_gpus = is_for_gpus(table);
  const auto known = [](double x) { return x > 0 ? nlohmann::json(x) : nlohmann::json(); };
  return {{"tokens", table.options.tokens},
          {"fits", t.fits},
          {"updates", c.updates},
          {"hours", c.hours},
          {on_gpus ? "gpu_hours" : "node_hours", c.device_hours},
          {"gpu_kwh", known(c.kwh)},
          {"gpu_watts", known(on_gpus ? table.rates->watts : 0)},
          {"price", known(table.options.price)},
          {"cost", known(c.cost)}};
}

nlohmann::json to_json(const PlanTable& table, const TunedOptions& t) {
  return {{"options", line_of(words_of(t))},
          {"strategy", t.placement->name},
          {"shard_group_size", t.shard_group_size},
          {"batch_size", t.batch_size},
          {"update_freq", t.micro_batches},
          {"checkpoint_activations", recomputes_all(t)},
          {"recomputed_blocks", recomputes_all(t) ? table.model->blocks.size() : t.recomputed_blocks},
          {"offloaded_inputs", std::min(t.offloaded_inputs, table.model->blocks.size())},
          {"memory", t.memory},
          {"host_memory_of_node", host_memory_of_node(table, t)},
          {"fits", t.fits},
          {"ms", t.step.total > 0 ? nlohmann::json(1e3 * t.step.total) : nlohmann::json()},
          {"tokens_per_update", tokens_of_update(table, t)},
          {"tokens_per_second", t.step.total > 0 ? nlohmann::json(t.tokens_per_second) : nlohmann::json()},
          {"mfu", t.step.total > 0 ? nlohmann::json(t.mfu) : nlohmann::json()}};
}

nlohmann::json to_json(const PlanTable& table, const Tuning& tuning) {
  nlohmann::json best = nlohmann::json::array();
  for (const TunedOptions& t : tuning.best) best.push_back(to_json(table, t));
  return {{"combinations", tuning.combinations},
          {"planned", tuning.planned},
          {"simulated", tuning.predicted},
          {"seconds", tuning.seconds},
          {"keeps_tokens_of_update", table.options.keeps_update},
          {"own", to_json(table, tuning.own)},
          {"best", best},
          {"left_out", tuning.left_out},
          {"notes", notes_of(table, tuning)},
          {"nearest", tuning.nearest ? to_json(table, *tuning.nearest) : nlohmann::json()}};
}

/// What to tell about: the best options of a search or, without one, those of the user.
struct Use {
  std::optional<Tuning> tuning = {};
  std::optional<TunedOptions> options = {};  // none if nothing fits
  Bottlenecks bottlenecks = {};              // of `options`
};
/// Requires table.predicts().
Use use_of(const PlanTable& table) {
  Use use;
  if (!table.options.tune) {
    use.options = own_options(table), use.bottlenecks = bottlenecks_of_chosen(table);
    return use;
  }
  use.tuning = tune(table);
  if (use.tuning->best.empty()) return use;
  use.options = use.tuning->best.front();
  PlanTable best = start_plan_table(with(table.options, *use.options));
  best.rows.push_back(plan_strategy(best, *use.options->placement));
  use.bottlenecks = bottlenecks_of_chosen(best);
  return use;
}

}  // namespace

Tuning tune(const PlanTable& table) { return Search(table).run(); }

Words words_of(const TunedOptions& t) {
  Words words = {{"--sharding-strategy", std::string(t.placement->name)}};
  const auto add = [&](const char* name, std::string value = "") { words.emplace_back(name, std::move(value)); };
  if (t.shard_group_size > 0) add("--shard-group-size", format("{}", t.shard_group_size));
  add("--batch-size", format("{}", t.batch_size)), add("--update-freq", format("{}", t.micro_batches));
  if (recomputes_all(t)) add("--checkpoint-activations");
  if (t.checkpoint_policy == CheckpointPolicy::selective) add("--checkpoint-policy", "selective");
  if (t.checkpoint_every > 1) add("--checkpoint-every", format("{}", t.checkpoint_every));
  if (t.recompute == Recompute::fewest) add("--recompute-num-layers", format("{}", t.recomputed_blocks));
  if (t.offloaded_inputs > 0) add("--offload-activations");
  if (t.offloaded_inputs > 0 && t.offloaded_inputs != all_inputs)
    add("--cpu-offloading-num-layers", format("{}", t.offloaded_inputs));
  if (t.attention != AttentionBackend::own)
    add("--attention-backend", t.attention == AttentionBackend::cudnn ? "cudnn" : "auto");
  const auto name = [](const Space* space) { return space == &spaces::host ? "cpu" : "nvme"; };
  if (t.places.parameters) add("--offload-params", name(t.places.parameters));
  if (t.places.optimizer && t.places.optimizer != t.places.parameters) add("--offload-optimizer", name(t.places.optimizer));
  return words;
}

TrainingCost training_cost(const PlanTable& table, double seconds, double tokens_of_update) {
  const PlanTableOptions& o = table.options;
  const bool on_gpus = is_for_gpus(table);
  TrainingCost c;
  c.updates = std::ceil(o.tokens / tokens_of_update);
  c.hours = c.updates * seconds / 3600;
  c.device_hours = c.hours * (on_gpus ? o.cluster.ranks() : o.cluster.nodes);
  if (on_gpus) c.kwh = c.device_hours * table.rates->watts / 1000;
  c.cost = c.device_hours * o.price;
  return c;
}

std::string describe_use(const PlanTable& table) {
  if (!table.predicts()) return "";
  const Use use = use_of(table);
  if (use.tuning) return "\n" + describe(table, *use.tuning, use.bottlenecks);
  const TunedOptions& own = *use.options;
  return format("\nthe chosen options, {}:\n", line_of(words_of(own))) + describe(use.bottlenecks) +
         (table.options.tokens > 0 ? describe(table, own) : "");
}

nlohmann::json use_json(const PlanTable& table) {
  if (!table.predicts()) return nlohmann::json::object();
  const Use use = use_of(table);
  nlohmann::json json = to_json(use.bottlenecks);
  if (use.tuning) json["tuning"] = to_json(table, *use.tuning);
  if (table.options.tokens > 0 && use.options) json["training"] = training_json(table, *use.options);
  return json;
}

}  // namespace fsdp
