#include "fsdp-plan/plan_table.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/number_in.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/mpi_session.hpp"
#include "fsdp-plan/plan_scaling.hpp"
#include "options/model_options.hpp"
#include "options/model_tokenizer.hpp"
#include "options/new_vocabulary.hpp"

namespace fsdp {

namespace {

constexpr int most_ranks = 1 << 20;

/// Returns the options of a run with this strategy.
ShardingOptions options_of_row(const PlanTableOptions& options, const Placement& placement, bool recompute) {
  ShardingOptions sharding = options_for(kind_to_plan_for(options.train.device), options.train.sharding);
  sharding.strategy = placement.name;
  if (placement.axis != ShardAxis::group)
    sharding.shard_group_size = 0;
  else if (sharding.shard_group_size == 0)
    sharding.shard_group_size = options.cluster.ranks_per_node;
  const bool first_blocks = recomputes_first_blocks(options);
  sharding.plan.checkpoint_activations = recompute && !first_blocks;
  if (!recompute) sharding.plan.recomputed_blocks = 0;
  return sharding;
}

/// All micro-batches but the first and the last have the same traffic.
DiskTraffic disk_traffic_of_update(const Model& model, ShardingOptions options, MeshShape mesh) {
  if (!options.plan.places.on_disk()) return {};
  const std::size_t K = options.plan.micro_batches;
  const auto of = [&](std::size_t micro_batches) {
    options.plan.micro_batches = micro_batches;
    return disk_traffic(plan_sharding(model, options, mesh).plan);
  };
  if (K <= 3) return of(K);
  const DiskTraffic two = of(2), three = of(3);
  return {two.read + (K - 2) * (three.read - two.read), two.written + (K - 2) * (three.written - two.written)};
}

/// `limit`: what a rank may need if `options` choose the number of recomputed blocks; 0: they do not.
PlanVariant plan_variant(const PlanTable& table, ShardingOptions options, MeshShape mesh, std::size_t limit,
                         std::vector<std::string>* warnings) {
  const TrainOptions& train = table.options.train;
  const Cluster& cluster = table.options.cluster;
  EngineOptions engine = train;
  engine.sharding = options, engine.recompute_to_fit = limit;
  const FittedPlan fitted = fit_plan(table.model, engine, mesh, cluster, {.snapshot = train.save.meanwhile()});
  PlanVariant variant;
  variant.memory = fitted.memory;
  variant.model = std::dynamic_pointer_cast<const Transformer>(fitted.model);
  variant.recomputed_blocks = options.plan.recomputed_blocks = fitted.recomputed_blocks;
  variant.offloaded_inputs = options.plan.offloaded_inputs = fitted.offloaded_inputs;
  const ShardedPlan planned = plan_two_micro_batches(*fitted.model, options, mesh, warnings);
  variant.traffic = traffic_of_cluster(collectives_of_update(planned.plan.update, options.plan.micro_batches), mesh, cluster);
  variant.keeps_whole_gradients = planned.plan.kept_whole_gradients != planned.plan.gradients;
  variant.disk = disk_traffic_of_update(*variant.model, options, mesh);
  if (table.predicts()) {
    const UpdateSimulation simulation(*variant.model, options, mesh, cluster);
    variant.step = simulation.predict(*table.rates, table.options.disk(), table.options.slow);
    if (table.options.slow.rank >= 0)
      variant.seconds_without_slow_rank = simulation.predict(*table.rates, table.options.disk()).total;
    variant.tokens_per_second = simulation.tokens_per_second(variant.step);
    variant.mfu = simulation.mfu(variant.step, *table.rates);
  }
  return variant;
}

/// "7:1.2": rank 7 takes 1.2 times as long to compute.
SlowRank read_slow_rank(const std::string& text, int ranks) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto rank = number_in<int>(text.substr(0, colon));
  const auto factor = number_in<double>(std::string_view(text).substr(std::min(colon + 1, text.size())));
  if (!rank || !factor)
    throw UserError(
        format("--slow-rank {} is no rank with a factor (7:1.2 means that rank 7 takes 1.2 times as long to "
               "compute); correct it",
               excerpt(text)));
  const SlowRank slow{*rank, *factor};
  if (slow.rank < 0 || slow.rank >= ranks)
    throw UserError(format("--slow-rank {}: the job has no rank {} (it has {}, from rank 0); give another rank", excerpt(text),
                           slow.rank, plural(ranks, "rank")));
  if (!(slow.factor >= 1 && slow.factor <= 100))
    throw UserError(
        format("--slow-rank {}: the factor is {:g} (1 to 100: how many times as long as the others this rank takes "
               "to compute); correct it",
               excerpt(text), slow.factor));
  return slow;
}

/// Returns true if the job, or one of --scaling, has several nodes.
bool has_several_nodes(const PlanTableOptions& o) {
  return o.cluster.nodes > 1 || (!o.scaling.empty() && o.scaling.back() > o.cluster.ranks_per_node);
}

/// The options of predictions. `slow` and `scaling` are the values of --slow-rank and --scaling.
void settle_predictions(const OptionTable& read, PlanTableOptions& o, const std::string& slow,
                        const std::vector<std::string>& scaling) {
  const bool is_measured = !o.train.measured.empty();
  for (const char* name : {"network", "gpu-power", "scaling"})
    if (read.given(name) && !o.gpu)
      throw UserError(
          format("--{} changes nothing without --gpu (it is for predictions); give --gpu NAME, or leave it out", name));
  if (read.given("slow-rank") && !o.gpu && !is_measured)
    throw UserError(
        "--slow-rank changes nothing without --gpu or --measured (it is for predictions); give one of them, or leave it out");
  for (const auto& [name, is_asked] : {std::pair("tune", o.tune), std::pair("tokens", o.tokens > 0)})
    if (is_asked && !o.gpu && !is_measured)
      throw UserError(format("--{} needs predicted times; give --gpu NAME or --measured FILE, or leave it out", name));
  if (o.tune && o.memory_limit == 0)
    throw UserError("--tune has no memory to fit (a plan has no device); give --memory-limit or --gpu");
  if (o.tune && !scaling.empty())
    throw UserError(
        "--tune contradicts --scaling (one searches a strategy, the other is about that of --sharding-strategy); leave out one "
        "of them, and give --scaling with the options that --tune finds");
  if (read.given("out") && scaling.empty())
    throw UserError("--out changes nothing without --scaling (it is the folder of its page); give both, or neither");
  if (read.given("gpu-power") && !(o.gpu_power <= o.gpu->watts && o.gpu_power >= o.gpu->watts / 4))
    throw UserError(format("--gpu-power {} is no power limit of the {} ({:g} to {:g} W); correct it", o.gpu_power,
                           o.gpu->product, o.gpu->watts / 4, o.gpu->watts));
  if (read.given("slow-rank")) o.slow = read_slow_rank(slow, o.cluster.ranks());
  o.scaling = numbers_of_ranks(scaling, most_ranks);
  o.keeps_total_batch = read.given("total-batch-size");
  if (read.given("network") && !has_several_nodes(o))
    throw UserError("--network changes nothing on one node (it connects nodes); give --nodes or --scaling, or leave it out");
  for (const auto& [name, is_asked] :
       {std::pair("tune", o.tune), std::pair("tokens", o.tokens > 0), std::pair("scaling", !scaling.empty())})
    if (is_asked && o.train.sharding.plan.places.on_disk() && !o.nvme_bandwidth.known())
      throw UserError(format(
          "--{} needs the rates of the disk (state is in a file); give --nvme-bandwidth R,W, or leave out --{}", name, name));
}

void settle(PlanTableOptions& o) {
  const std::int64_t ranks = std::int64_t{o.cluster.nodes} * o.cluster.ranks_per_node;
  if (ranks > most_ranks)
    throw UserError(format("{} nodes of {} ranks are too many (the limit is {} ranks in all); lower one of the two",
                           o.cluster.nodes, o.cluster.ranks_per_node, most_ranks));
  if (o.train.arch.empty() && o.train.model.empty())
    throw UserError("no model is given (there is nothing to plan for); give --arch NAME (see --list-archs) or --model DIR");
  if (o.nvme_bandwidth.known() && !((o.gpu || !o.train.measured.empty()) && o.train.sharding.plan.places.on_disk()))
    throw UserError(
        "--nvme-bandwidth changes nothing without --gpu or --measured, and state in a file (--offload-optimizer nvme or "
        "--offload-params nvme); give these, or leave it out");
  if (o.price > 0 && o.tokens == 0)
    throw UserError(
        "--price changes nothing without --tokens (it is multiplied by the hours of a training); give both, or neither");
  if (o.host_memory > 0 && !o.tune)
    throw UserError("--host-memory changes nothing without --tune (only the search compares it); give both, or neither");
  if (o.tune && o.explain)
    throw UserError(
        "--tune contradicts --explain (one searches a strategy, the other explains that of --sharding-strategy); leave out one "
        "of them");
  o.cluster.between = find_backend(o.train.comm.kind).between;
  o.cluster.sum_order = o.train.comm.sum_order;
  if (o.gpu) {
    if (o.train.device == DeviceChoice::cpu)
      throw UserError(
          "--gpu and --device cpu contradict each other (one plans for GPUs, the other for CPUs); leave out one of them");
    o.train.device = DeviceChoice::cuda;
    if (!find_backend(o.train.comm.kind).device_backend)
      throw UserError(
          format("--gpu predicts NCCL's collectives, but --comm {} sends data through the host; leave out one of them",
                 o.train.comm.kind));
    if (o.cluster.nodes > 1 && o.gpu->network.empty() && o.network.empty())
      throw UserError(
          format("--gpu {} has no figure for a network between nodes (NVIDIA has no system with this GPU and a network); give "
                 "--network NAME or PORTSxGBIT, or --nodes 1",
                 o.gpu->name));
  }
  if (!o.network.empty()) read_network(o.network);  // throws UserError
  if (!o.train.measured.empty() && !o.gpu && (o.train.device == DeviceChoice::cuda || o.cluster.nodes > 1))
    throw UserError(
        o.cluster.nodes > 1
            ? "--measured without --gpu predicts CPUs of one node (rates of a network are not measured); give --gpu "
              "NAME, or --nodes 1"
            : "--measured with --device cuda needs the GPU (other figures come from its data sheet); give --gpu NAME");
  o.memory_limit = o.train.memory_limit > 0 ? o.train.memory_limit : o.gpu ? static_cast<std::size_t>(o.gpu->memory_bytes) : 0;
  if (o.train.recompute_num_layers == "auto" && o.memory_limit == 0)
    throw UserError("--recompute-num-layers auto has no memory to fit (a plan has no device); give --memory-limit or --gpu");
  // By default a run uses one thread per core of a rank; here the cores of the cluster are unknown.
  if (o.train.threads == 0) o.train.threads = 1;
}

}  // namespace

OptionTable plan_option_table(PlanTableOptions& o) {
  OptionTable table("fsdp-plan", "[options of fsdp-train] --nodes N --ranks-per-node N [options]",
                    "Prints for every sharding strategy the memory and the traffic of a rank of fsdp-train on a cluster, which "
                    "need not exist. It takes the options of fsdp-train (see fsdp-train --help). Needs no MPI launcher, no "
                    "data and no weights; from --model it reads only config.json. Options that only a run needs are accepted "
                    "without effect. The exit code is 0 even if nothing fits.");
  table.examples({"fsdp-plan --arch llama-3.1-8b --bf16 --nodes 16 --ranks-per-node 8 --memory-limit 80GB",
                  "fsdp-plan --arch llama-3.1-8b --bf16 --nodes 2 --ranks-per-node 8 --gpu h100",
                  "fsdp-plan --arch gpt2-xl --ranks-per-node 8 --sharding-strategy grad-op --explain"});
  table.group("Cluster");
  table.integer("nodes", "N", o.cluster.nodes, {1, most_ranks}, "Nodes of the job.").common();
  table
      .integer("ranks-per-node", "N", o.cluster.ranks_per_node, {1, most_ranks},
               "Ranks per node, consecutive; also the size of the shard groups of hybrid strategies, unless "
               "--shard-group-size is given.")
      .common();
  std::vector<std::pair<std::string, const GpuFigures*>> gpus;
  for (const GpuFigures& gpu : known_gpus()) gpus.emplace_back(gpu.name, &gpu);
  for (const GpuFigures& gpu : known_gpus()) gpus.emplace_back(gpu.product, &gpu);
  table
      .choice<const GpuFigures*>(
          "gpu", o.gpu, std::move(gpus),
          "Plan for one such GPU per rank, as with --device cuda, and predict the time of an update from the plan, the GPU's "
          "datasheet and published measurements (docs/simulator.md). NAME may also be the driver's name of the GPU.")
      .unset("no prediction")
      .common();
  table
      .pair("nvme-bandwidth", "R,W", o.nvme_bandwidth.read, o.nvme_bandwidth.write,
            "The rates at which a node's disk reads and writes at the same time, in GB/s, for --gpu with state in a file. "
            "fsdp-bench storage prints their sum.",
            "0.001 or more", [](double rate) { return rate >= 0.001; })
      .unset("unknown; no prediction with state in a file");
  table
      .text("network", "NAME", o.network,
            format("The network between nodes, for --gpu: {}; or PORTSxGBIT, such as 4x200: the ports of a node, and the rate "
                   "of each in Gbit/s; or a JSON file (docs/scaling.md).",
                   names_of_networks()))
      .unset("that of NVIDIA's own system with the GPU");
  table
      .number("gpu-power", "W", o.gpu_power,
              "The power limit of each GPU in watts, for --gpu. Rates of --measured stay as they are.", "above 0",
              [](double watts) { return watts > 0; })
      .unset("the highest");
  const auto slow = std::make_shared<std::string>();  // the step of the table keeps both alive
  table
      .text("slow-rank", "R:F", *slow,
            "Predict a job in which rank R takes F times as long to compute as the others, for --gpu or --measured.")
      .unset("none");
  const auto scaling = std::make_shared<std::vector<std::string>>();
  table
      .list(
          "scaling", "LIST", *scaling,
          "Also predict --sharding-strategy on these numbers of ranks, for --gpu: 1,2,4..4096 (which doubles from 4 to 4096). "
          "Nodes have --ranks-per-node ranks. Each rank keeps its micro-batches or, with --total-batch-size, all ranks "
          "together do.")
      .unset("none");
  table.group("Output");
  table
      .flag("explain", o.explain,
            "Explain each number of the strategy of --sharding-strategy, and compare it with rules of thumb. With --json, also "
            "print the units with their tensors, the buffers and the operations of this strategy.")
      .common();
  table
      .flag("tune", o.tune,
            "Search the strategy, shard group, batch size, recomputation, attention backend and places of state with the "
            "shortest predicted time that fit the memory. The tokens of an update stay the same if --total-batch-size, "
            "--batch-size, --update-freq or --max-tokens is given; else a rank has one micro-batch. Needs --gpu or --measured.")
      .common();
  table
      .size("host-memory", "SIZE", o.host_memory,
            "With --tune: the memory of a node's host, which must hold what its GPUs keep there, and the copies that saves "
            "write.",
            std::size_t{1} << 20)
      .unset("not compared");
  table
      .number("tokens", "N", o.tokens,
              "Also print the hours, GPU hours and energy of a training on N tokens. Needs --gpu or --measured.",
              "from 1 to 1e18", [](double n) { return n >= 1 && n <= 1e18; })
      .unset("not printed");
  table
      .number("price", "P", o.price,
              "The price of a GPU for an hour (without GPUs: of a node), for the cost of --tokens; in any currency.",
              "above 0, at most 1e9", [](double p) { return p > 0 && p <= 1e9; })
      .unset("no cost");
  table.path("out", "DIR", o.out, "With --scaling: also write scaling.html and scaling.csv here.").unset("only printed");
  table.flag("json", o.json, "Print one JSON object with all numbers, in bytes.").common();
  table.then([&o](const OptionTable& given) {
    for (const char* name : {"total-batch-size", "batch-size", "update-freq", "max-tokens"})
      o.keeps_update = o.keeps_update || given.given(name);
    for (const char* name : {"sharding-strategy", "ddp-backend", "no-reshard-after-forward", "shard-group-size", "batch-size",
                             "max-tokens", "update-freq", "checkpoint-activations", "checkpoint-policy", "checkpoint-every",
                             "recompute-num-layers", "offload-activations", "cpu-offloading-num-layers", "attention-backend",
                             "offload-params", "cpu-offload", "offload-optimizer", "nvme-path", "nvme-bandwidth"})
      if (given.given(name)) o.varied.push_back(format("--{}", name));
    settle(o);
  });
  table.then([&o, slow, scaling](const OptionTable& read) { settle_predictions(read, o, *slow, *scaling); });
  table.rows_of("fsdp-train");
  add_train_options(table, o.train, [&o] { return o.cluster.ranks(); });
  for (const char* name : {"data", "max-update", "max-epoch"}) table.row(name).unset("not needed here");
  table.row("arch").unset("as --model");
  table.row("memory-limit").unset("no limit, or that of --gpu").common();
  table.row("threads").follows("1 here; scratch grows with it");
  return table;
}

std::array<bool, 3> PlanRow::sharded() const {
  const bool updates_a_part = placement->optimizer_state == Place::sharded;
  return {placement->parameters_at_rest == Place::sharded, updates_a_part, updates_a_part};
}

std::array<bool, 3> PlanRow::kept_whole() const {
  return {placement->parameters_at_rest == Place::sharded && placement->parameters_forward_to_backward == Place::whole,
          keeping.keeps_whole_gradients, false};
}

const PlanRow& PlanTable::chosen() const {
  return *std::find_if(rows.begin(), rows.end(), [](const PlanRow& row) { return row.chosen; });
}

ShardingOptions options_of_chosen(const PlanTable& table, bool recompute) {
  const PlanRow& row = table.chosen();
  ShardingOptions sharding = options_of_row(table.options, *row.placement, recompute);
  sharding.plan.recomputed_blocks = row.variant(recompute).recomputed_blocks;
  sharding.plan.offloaded_inputs = row.variant(recompute).offloaded_inputs;
  return sharding;
}

ShardedPlan plan_of_chosen(const PlanTable& table, bool recompute) {
  const PlanRow& row = table.chosen();
  return plan_two_micro_batches(*row.variant(recompute).model, options_of_chosen(table, recompute), row.mesh);
}

std::vector<TaskTime> times_of_chosen(const PlanTable& table, bool recompute) {
  std::vector<TaskTime> times;
  if (!table.predicts()) return times;
  const PlanRow& row = table.chosen();
  ShardingOptions options = options_of_chosen(table, recompute);
  options.plan.micro_batches = std::min<std::size_t>(2, options.plan.micro_batches);  // as in plan_of_chosen()
  const UpdateSimulation simulation(*row.variant(recompute).model, options, row.mesh, table.options.cluster);
  for (const SimulatedOperation& one : simulation.operations(*table.rates, table.options.disk(), table.options.slow))
    times.push_back(one.time);
  return times;
}

namespace {

/// Returns the choice with the smallest `cost(variant, recompute)` of those that are allowed; among equals the first one.
template <class Allowed, class Cost>
std::optional<PlanChoice> cheapest(const PlanTable& table, const Allowed& allowed, const Cost& cost) {
  std::optional<PlanChoice> best;
  const auto of = [&](const PlanChoice& one) { return cost(table.rows[one.row].variant(one.recompute), one.recompute); };
  for (const bool recompute : {false, true})
    for (std::size_t row = 0; row < table.rows.size(); ++row)
      if (const PlanChoice choice = {row, recompute};
          allowed(table.rows[row].variant(recompute)) && (!best || of(choice) < of(*best)))
        best = choice;
  return best;
}

}  // namespace

std::optional<PlanChoice> PlanTable::least_communicating() const {
  return cheapest(
      *this, [&](const PlanVariant& v) { return fits(v); },
      [](const PlanVariant& v, bool recompute) {
        return std::tuple(v.traffic.out_of_node, v.traffic.rank.total(), recompute, v.memory.total());
      });
}

PlanChoice PlanTable::smallest() const {
  return *cheapest(
      *this, [](const PlanVariant&) { return true; }, [](const PlanVariant& v, bool) { return v.memory.total(); });
}

PlanRow plan_strategy(const PlanTable& table, const Placement& placement, std::vector<std::string>* warnings) {
  const PlanTableOptions& options = table.options;
  PlanRow row;
  row.placement = &placement;
  row.chosen = placement.name == options.train.sharding.strategy;
  for (const bool recompute : {false, true}) {
    const ShardingOptions sharding = options_of_row(options, placement, recompute);
    check_sharding(table.model->config(), sharding, options.cluster.ranks());
    row.mesh = mesh_shape(placement, options.cluster.ranks(), sharding.shard_group_size);
    const bool chooses = recompute && options.train.recompute_num_layers == "auto";
    (recompute ? row.recomputing : row.keeping) =
        plan_variant(table, sharding, row.mesh, chooses ? options.memory_limit : 0, recompute ? nullptr : warnings);
  }
  return row;
}

bool recomputes_first_blocks(const PlanTableOptions& options) { return options.train.recompute_num_layers != "0"; }

bool recomputes(const PlanTableOptions& options) {
  return options.train.sharding.plan.checkpoint_activations || recomputes_first_blocks(options);
}

PlanTable start_plan_table(const PlanTableOptions& options) {
  DeviceTraits device = traits_of(kind_to_plan_for(options.train.device), static_cast<int>(options.train.threads));
  TransformerConfig config = named_config(options.train, nullptr);
  grow_vocabulary(options.train, name_of_model_tokenizer(options.train.tokenizer, options.train.model, config.vocab_size),
                  false, config);
  const AttentionChoice attention = plan_attention(options.train.attention_backend, config, options.train.sharding,
                                                   options.train.attention_dropout, device.kind);
  device.cudnn_head_size = attention.cudnn_head_size;
  if (options.train.bias_gelu_fusion) check_bias_gelu_fusion(config, options.train.sharding.types.parameter, device.kind);
  PlanTable table{options, std::make_shared<Transformer>(config, device), {}, {}, {}, {}, {}};
  const DType type = options.train.sharding.types.parameter;
  const Network network = !has_several_nodes(options) ? Network()
                          : !options.network.empty()  ? read_network(options.network)
                          : options.gpu               ? network_of(*options.gpu)
                                                      : Network();
  if (options.gpu || !options.train.measured.empty())
    table.rates =
        measured_rates(options.train.measured, measured_use(options.train, options.cluster, options.gpu),
                       options.gpu ? rates_of(*options.gpu, *table.model, type, network, options.gpu_power) : Rates());
  if (options.gpu && !options.gpu->runs_fsdp()) {
    if (type == DType::bf16)
      throw UserError(format("--gpu {} has no bf16 (its compute capability is 7.0, and bf16 needs 8.0); give --precision fp16",
                             options.gpu->name));
    table.warnings.push_back(format(
        "fsdp itself does not run on --gpu {} (its compute capability is 7.0, and fsdp needs 8.0): predictions for it are "
        "only for comparisons with other programs",
        options.gpu->name));
  }
  if (!attention.why.empty()) table.warnings.push_back("attention by the kernels of fsdp: " + attention.why);
  const PlanOptions& wanted = options.train.sharding.plan;
  if (is_host(device.kind) && offloads_to_host(wanted))
    table.warnings.push_back(
        "nothing is offloaded, because on CPUs all memory is host memory; give --device cuda to plan for GPUs");
  return table;
}

PlanTable make_plan_table(const PlanTableOptions& options) {
  PlanTable table = start_plan_table(options);
  const Cluster cluster = options.cluster;
  for (const Placement& placement : placements()) {
    // The units are the same for all strategies.
    const PlanRow row = plan_strategy(table, placement, table.rows.empty() ? &table.warnings : nullptr);
    if (row.chosen && options.train.chooses_blocks && options.train.memory_limit > 0) {
      EngineOptions engine = options.train;
      engine.sharding = options_of_row(options, placement, false), engine.recompute_to_fit = options.memory_limit;
      const FittedPlan fitted = fit_plan(table.model, engine, row.mesh, cluster, {.snapshot = options.train.save.meanwhile()});
      PlanOptions& plan = engine.sharding.plan;
      plan.recomputed_blocks = fitted.recomputed_blocks, plan.offloaded_inputs = fitted.offloaded_inputs;
      if (fitted.fits && plan.recomputed_blocks > 0) table.choice = with_option_names(describe_choice(plan));
    }
    table.rows.push_back(row);
  }
  table.scaling = predict_scaling(table);
  return table;
}

std::optional<RuleOfThumb> tutorial_estimate(double P, int world_size, bool mixed, const Placement& placement) {
  const double bytes_per_param = mixed ? 2 : 4, N = world_size;
  const double all = P * bytes_per_param;
  const std::string precision = mixed ? "mixed precision" : "fp32";
  if (placement.name == "full") return RuleOfThumb{"tutorial, FULL_SHARD, " + precision, all / N, all / N, P * 4 * 2 / N, all};
  if (placement.name == "grad-op") return RuleOfThumb{"tutorial, SHARD_GRAD_OP, " + precision, all, all / N, P * 4 * 2 / N, 0};
  return {};
}

RuleOfThumb slides_breakdown(double P, MeshShape mesh, const Placement& placement) {
  const auto divided = [&](double bytes, Place place) { return place == Place::sharded ? bytes / mesh.shard : bytes; };
  const bool at_all = placement.axis != ShardAxis::rank && mesh.shard > 1;
  return {format("slides, 2x + 2x + 12x, {}{}", placement.name, at_all ? format(" over {}", mesh.shard) : ""),
          divided(2 * P, placement.parameters_forward_to_backward), divided(2 * P, placement.gradients_between_micro_batches),
          divided(12 * P, placement.optimizer_state), 0};
}

}  // namespace fsdp
