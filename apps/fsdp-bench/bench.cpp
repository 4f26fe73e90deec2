#include "fsdp-bench/bench.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/program.hpp"
#include "base/timer.hpp"
#include "comm/silent.hpp"
#include "files/json.hpp"
#include "job/program.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "machine/energy.hpp"
#include "machine/machine.hpp"
#include "machine/measured_rates.hpp"
#include "options/common_options.hpp"
#include "plan/placement.hpp"
#include "run/gemm_algorithms.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

namespace {

/// Returns the peak rate of all ranks for matrix products of this type. On CPUs it is the sum of the rates that the ranks reach
/// for a large product. On GPUs it is the sum of the rates in the datasheets; empty if they are unknown.
std::optional<double> gemm_peak(DType type, Device& device, Stream& stream, Communicator& world) {
  if (!is_host(device.kind())) return peak_of_gpus(device, type, world);
  return world.sum(product_rate(type, device, stream, world, kernels::Trans::no, kernels::Trans::no, 1024, 1024, 1024, 0.7));
}

/// Returns the rate in GFLOP/s; null if it is unknown.
nlohmann::json json_of(std::optional<double> flops) { return flops ? nlohmann::json(*flops / 1e9) : nlohmann::json(); }

std::string bench_gemm(const BenchOptions& options, const CpuShare& share, Communicator& world, Device& device,
                       Stream& stream) {
  const TransformerConfig config = agree(world, [&] { return config_of(options); });
  const DType type = options.sharding.types.parameter;
  const bool on_gpu = !is_host(device.kind());
  const std::size_t R = options.sharding.batch.rows(), C = config.width, F = config.ffn_width;
  const std::size_t head_columns = Transformer(config, traits_of(device.kind(), kernels::threads())).head_columns();
  const std::optional<double> peak = gemm_peak(type, device, stream, world);
  const double cores = world.sum(share.cores);
  if (world.rank() == 0 && !on_gpu) note_peak_per_core(type, *peak / cores);  // the reference of fsdp-train's MFU
  struct Row {
    const char* name;
    kernels::Trans a, b;
    std::size_t m, n, k;
  };
  using enum kernels::Trans;
  std::vector<Row> rows = {Row{"up, forward", no, no, R, F, C},
                           Row{"up, dX", no, yes, R, C, F},
                           Row{"up, dW", yes, no, C, F, R},
                           Row{"down, forward", no, no, R, C, F},
                           Row{"down, dX", no, yes, R, F, C},
                           Row{"down, dW", yes, no, F, C, R},
                           Row{"head, forward", no, yes, R, head_columns, C}};
  if (on_gpu) rows.push_back({"square", no, no, R, R, R});
  if (!options.execution.gemm_algorithms.empty()) {  // the products below, in memory that is freed before they run
    std::vector<Buffer> memory;
    std::vector<kernels::Product> products;
    agree(world, [&] {
      check_gemm_algorithms(options.execution.gemm_algorithms, device.kind());
      for (const Row& row : rows) {
        const auto allocate = [&](std::size_t numbers) {
          return memory.emplace_back(device.allocate(numbers * size_of(type))).data();
        };
        products.push_back({type, type, row.a, row.b, row.m, row.n, row.k, allocate(row.m * row.k),
                            row.a == yes ? row.m : row.k, allocate(row.k * row.n), row.b == yes ? row.k : row.n,
                            allocate(row.m * row.n), row.n, kernels::Write::overwrite});
      }
    });
    use_gemm_algorithms(options.execution.gemm_algorithms, products, stream, device, world);
  }
  const std::string description = on_gpu ? device.description() : kernels::gemm_description();
  nlohmann::json json = {{"device", device.description()},
                         {"peak_gflops", json_of(peak)},
                         {"precision", name_of(type)},
                         {"ranks", world.size()},
                         {"gemm", description}};
  std::string text = format("{}; {} ranks at once, {}; peak{}: {}\n{:<16} {:>6} {:>6} {:>6} {:>15} {:>8}\n", description,
                            world.size(), name_of(type), on_gpu ? " by the datasheet" : ", 1024 x 1024 x 1024",
                            peak ? format_rate(*peak, device.kind()) + " together" : std::string("not known of this GPU"),
                            model_of(options), "m", "n", "k", "all ranks", "of peak");
  for (const Row& row : rows) {
    const double rate = world.sum(product_rate(type, device, stream, world, row.a, row.b, row.m, row.n, row.k, 0.3));
    text += format("{:<16} {:>6} {:>6} {:>6} {:>15} {:>8}\n", row.name, row.m, row.n, row.k, format_rate(rate, device.kind()),
                   format_share(rate, peak));
    json["products"].push_back({{"name", row.name},
                                {"m", row.m},
                                {"n", row.n},
                                {"k", row.k},
                                {"gflops", rate / 1e9},
                                {"of_peak", peak ? nlohmann::json(rate / *peak) : nlohmann::json()}});
  }
  return options.json ? json_text(json) + "\n" : text;
}

/// Returns ", parameters on the host, optimizer's state in a file" or a part of it.
std::string describe(const StatePlaces& places) {
  const auto part = [](const char* what, const Space* place) {
    return place ? format(", {} {}", what, place->tier == Tier::disk ? "in a file" : "on the host") : std::string();
  };
  return part("parameters", places.parameters) + part("optimizer's state", places.optimizer);
}

/// The processors of the machines on which the ranks run, and the ranks' threads. Nodes with the same boot are one machine.
std::pair<std::size_t, std::size_t> processors_and_threads(Communicator& world) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  const std::vector<std::string> boots = world.gather(boot);
  const std::vector<double> processors = world.gather(static_cast<double>(std::thread::hardware_concurrency()));
  std::map<std::string, double> machines;
  for (std::size_t r = 0; r < boots.size(); ++r) machines[boots[r]] = std::max(machines[boots[r]], processors[r]);
  double all = 0;
  for (const auto& [name, count] : machines) all += count;
  return {static_cast<std::size_t>(all), static_cast<std::size_t>(world.sum(std::int64_t{kernels::threads()}))};
}

/// Returns what --measured reads: the rates of a node in the measured updates of this rank, whose times are `times`. Collective
/// over world.
nlohmann::json rates_of_node(const ShardedModel& sharded, const ShardingOptions& options, const std::vector<WorkTimes>& times,
                             double cores, double peak, Communicator& world, Communicator& node) {
  const auto median_of = [&](double WorkTimes::*part) {
    std::vector<double> all;
    for (const WorkTimes& of_update : times) all.push_back(of_update.*part);
    return median(all);
  };
  const double nodes = static_cast<double>(world.size()) / node.size();
  WorkRates rates =
      rates_of_work(work_of_update(sharded.transformer(), sharded.plan(), sharded.layout(), options, sharded.mesh().shape),
                    {.products = median_of(&WorkTimes::gemm),
                     .attention = median_of(&WorkTimes::attention),
                     .memory = median_of(&WorkTimes::other_kernels),
                     .optimizer = median_of(&WorkTimes::optimizer),
                     .collectives = median_of(&WorkTimes::collectives)});
  if (nodes > 1) rates.collectives = 0;  // they are not only memory's
  for (const auto rate :
       {&WorkRates::products, &WorkRates::attention, &WorkRates::memory, &WorkRates::optimizer, &WorkRates::collectives})
    rates.*rate = world.sum(rates.*rate) / nodes;
  return to_json(rates, kernels::threads(), world.sum(cores) / nodes, peak / nodes);
}

std::string bench_step(const BenchOptions& options, const CpuShare& share, Communicator& world, Communicator& node,
                       Device& device, Stream& stream) {
  const std::size_t B = options.sharding.batch.B, T = options.sharding.batch.T, K = options.sharding.plan.micro_batches;
  const ShardingOptions sharding = options_for(device.kind(), options.sharding);
  std::optional<TraceFile> trace_file;  // on rank 0
  TransformerConfig config;
  agree(world, [&] {
    check_sharding(config = config_of(options), sharding, world.size());
    require_places(options.sharding.plan, device.kind());
    if (world.rank() == 0 && !options.trace.file.empty()) trace_file.emplace(options.trace.file);
  });
  const bool on_gpu = !is_host(device.kind());
  ShardedModel sharded(config, sharding, world, traits_for(options, config, sharding, device, world));
  sharded.allocate(device, options.execution, options.comm);
  Executor& executor = sharded.executor();
  executor.initialize_parameters(1);
  executor.publish_parameters();
  const std::optional<double> peak = gemm_peak(options.sharding.types.parameter, device, stream, world);

  const std::size_t V = sharded.transformer().config().vocab_size;
  const double tokens = tokens_of_update(sharding, sharding.batch, world);
  const BatchReader random_tokens = random_batches({B, T}, V, world.rank());
  std::uint64_t updates = 0;
  const SilentMesh silent(sharded.mesh());
  const auto update = [&](bool fake) {
    executor.communicate_along(fake ? silent.mesh : sharded.mesh());
    return time_update(executor, random_tokens, ++updates, tokens, world);
  };
  std::optional<Recorder> recorder;
  if (!options.trace.file.empty()) executor.observe(recorder.emplace(sharded.plan(), options.trace.updates));
  std::vector<double> seconds, fake_seconds;
  WorkTimes times;  // of this rank, in the updates that are counted
  std::vector<WorkTimes> times_of_updates;
  EnergyMeter energy(device, node);
  Energy used;  // in the updates that are counted
  for (std::size_t step = 1; step <= options.steps + 2; ++step) {
    // Each step has an update with transfers and one without. Their order alternates, so that a machine that becomes slower
    // slows both alike.
    const bool fake_first = options.exposed && step % 2 == 0;
    if (fake_first) fake_seconds.push_back(update(true));
    if (recorder && step > 1) recorder->record_next();
    energy.look();
    const Energy before = energy.total(world);
    seconds.push_back(update(options.fake_collectives));
    if (const Energy after = energy.total(world); step > 2)
      for (const auto of : {&Energy::processors, &Energy::gpus})
        if ((after.*of).has_value() && (before.*of).has_value())
          used.*of = (used.*of).value_or(0) + *(after.*of) - *(before.*of);
    if (step > 2) times += times_of_updates.emplace_back(executor.times());
    if (options.exposed && !fake_first) fake_seconds.push_back(update(true));
  }
  for (auto* list : {&seconds, &fake_seconds})
    list->erase(list->begin(), list->begin() + std::min<std::ptrdiff_t>(2, std::ssize(*list)));
  if (recorder) {
    const std::string problem = write_trace(*recorder, sharded, world, trace_file ? &*trace_file : nullptr);
    agree(world, [&] {
      if (!problem.empty()) throw RunError(problem);
    });
  }
  const double step_s = median(seconds), rate = tokens / step_s;
  const double flops = sharded.transformer().flops_per_token(T) * rate;
  const char* exposed = options.comm_thread || on_gpu ? "waiting" : "collectives";
  std::vector<std::pair<const char*, double>> parts;  // for a GPU, empty unless its kernels are traced
  if (!on_gpu) parts = {{"GEMM", times.gemm}, {"attention", times.attention}};
  if (times.total() > 0)
    for (const auto& part : {std::pair(on_gpu ? "kernels" : "other kernels", times.other_kernels),
                             std::pair(exposed, times.exposed), std::pair("optimizer", times.optimizer)})
      parts.push_back(part);
  nlohmann::json json = {{"arch", model_of(options)},
                         {"device", device.description()},
                         {"ranks", world.size()},
                         {"strategy", options.sharding.strategy},
                         {"precision", name_of(options.sharding.types.parameter)},
                         {"tokens_per_second", rate},
                         {"ms", step_s * 1e3},
                         {"min_ms", *std::min_element(seconds.begin(), seconds.end()) * 1e3},
                         {"of_gemm_peak", peak ? nlohmann::json(flops / *peak) : nlohmann::json()},
                         {"gemm_peak_gflops", json_of(peak)},
                         {"mem_peak_bytes", executor.peak_bytes()}};
  const auto [processors, threads] = processors_and_threads(world);
  json["processors"] = processors, json["threads"] = threads;
  // A job on GPUs whose processors report nothing counts the GPUs only.
  const bool knows_energy = on_gpu ? used.gpus.has_value() : used.processors.has_value();
  const double joules = used.processors.value_or(0) + used.gpus.value_or(0);
  json["joules_per_token"] =
      knows_energy ? nlohmann::json(joules / (tokens * static_cast<double>(options.steps))) : nlohmann::json();
  if (!on_gpu && !options.fake_collectives)
    json["rates"] = rates_of_node(sharded, sharding, times_of_updates, share.cores, *peak, world, node);
  if (on_gpu) json["comm"] = sharded.mesh().data_description;
  std::string text =
      format("{}{}, {} ranks, {}, {}, batch {} x {} x {} per rank{}{}\n{:.0f} tokens/s, {:.{}f} ms per update (median of {}), ",
             on_gpu ? device.description() + "; " + sharded.mesh().data_description + "\n" : std::string(), model_of(options),
             world.size(), options.sharding.strategy, name_of(options.sharding.types.parameter), B, T, K,
             format("{}{}", sharding.plan.checkpoint_activations ? ", blocks recomputed" : "", describe(sharding.plan.places)),
             options.fake_collectives ? ", collectives faked (nothing is transferred, losses are meaningless)" : "", rate,
             step_s * 1e3, on_gpu ? 1 : 0, seconds.size());
  if (peak)
    text += format("{} of the {} of {}\n", format_share(flops, peak), on_gpu ? "peak by the datasheet (MFU)" : "GEMM peak",
                   format_rate(*peak, device.kind()));
  else
    text += "no MFU, as the peak of this GPU is not known\n";
  if (!parts.empty()) text += "where the time of rank 0 goes:\n";
  for (const auto& [name, part] : parts) {
    text += format("  {:<14} {:>7.0f} ms {:>5.1f}%\n", name, 1e3 * part / static_cast<double>(seconds.size()),
                   100 * part / times.total());
    json["share"][name] = part / times.total();
  }
  if (options.comm_thread) {
    const double ms = 1e3 * times.collectives / static_cast<double>(seconds.size());
    text += format("at the same time, on the communication thread: collectives {:.0f} ms\n", ms);
    json["comm_thread_ms"] = ms;
  }
  if (options.fake_collectives) json["fake_collectives"] = true;
  if (options.exposed) {
    const double fake_s = median(fake_seconds), exposed_s = step_s - fake_s;
    text += format(
        "without transfers, in alternation with the above: {:.1f} ms per update; exposed communication: {:.1f} ms, {:.1f}% of "
        "an update\n",
        1e3 * fake_s, 1e3 * exposed_s, 100 * exposed_s / step_s);
    json["fake_ms"] = 1e3 * fake_s;
    json["exposed_ms"] = 1e3 * exposed_s;
    json["exposed_share"] = exposed_s / step_s;
  }
  return options.json ? json_text(json) + "\n" : text;
}

/// Throws UserError for options that the measurement does not use.
void require_read(const OptionTable& table, const BenchOptions& o) {
  // With a model, `collectives` measures those of an update.
  const std::string what = o.what == "collectives" && o.names_model ? "collectives with --arch" : o.what;
  const std::pair<std::string_view, std::vector<const char*>> uses[] = {
      {"gemm, step, tuning, scaling, collectives with --arch",
       {"arch", "model", "decoder-layers", "decoder-embed-dim", "decoder-ffn-embed-dim", "decoder-attention-heads",
        "decoder-kv-heads", "vocab-size", "share-decoder-input-output-embed", "decoder-learned-pos", "no-scale-embedding",
        "activation-fn", "batch-size", "tokens-per-sample", "precision"}},
      {"step, tuning, scaling, collectives with --arch",
       {"attention-backend", "bias-gelu-fusion", "shard-group-size", "update-freq", "sharding-strategy",
        "checkpoint-activations", "comm-thread", "optimizer-state-dtype", "master-dtype", "grad-dtype", "invariant",
        "cpu-offload", "offload-optimizer", "offload-params", "nvme-path"}},
      {"step, tuning, scaling, collectives, collectives with --arch", {"sum-order", "sum-staging"}},
      {"gemm, step, scaling", {"gemm-algorithms"}},
      {"step", {"fake-collectives", "exposed", "trace"}},
      {"tuning", {"memory-limit"}},
      {"collectives", {"max-size"}},
      {"scaling", {"nodes", "ranks-per-node", "extrapolate", "run-limit", "launcher", "out"}},
      {"storage", {"folder", "file-size"}}};
  for (const auto& [read_by, options] : uses)
    for (const char* option : options)
      if (table.changed(option) && format(", {},", read_by).find(format(", {},", what)) == std::string::npos)
        throw UserError(format("{} changes nothing (fsdp-bench {} does not use it; it is for {}); leave it out",
                               table.given(option) ? table.typed(option) : "--" + std::string(option), what, read_by));
}

/// Throws UserError for invalid or contradictory options.
void check(const OptionTable& table, const BenchOptions& o) {
  constexpr std::string_view all[] = {"gemm", "step", "tuning", "scaling", "collectives", "storage"};
  if (std::find(std::begin(all), std::end(all), o.what) == std::end(all)) return;  // bench() reports it
  require_read(table, o);
  if (o.run_limit_s <= 0)
    throw UserError("--run-limit is 0 (a run that hangs would never be ended); give a time, such as 10min");
  if (o.what == "storage" && o.folder.empty())
    throw UserError(
        "storage has no folder (the file is made in it); give one on a drive of this machine: fsdp-bench storage DIR");
  if (o.file_bytes % (std::size_t{4} << 20) != 0)
    throw UserError(
        format("--file-size {} is not a multiple of 4MiB (it is read and written in quarters of whole tiles of 1 MiB); give a "
               "multiple",
               o.file_bytes));
  if (table.given("arch") && table.given("model"))
    throw UserError("--arch and --model are both given (each selects a model); leave out one of them");
  if (table.given("shard-group-size") && !(o.what == "tuning" && o.every_strategy) &&
      find_placement(o.sharding.strategy).axis != ShardAxis::group)
    throw UserError(
        "--shard-group-size changes nothing (it is only for --sharding-strategy hybrid and hybrid-grad-op); give one of these "
        "strategies, or leave it out");
  if (o.what == "collectives" && (o.largest_bytes < 4096 || o.largest_bytes > std::size_t{1} << 32))
    throw UserError("--max-size is out of range (4KiB to 4GiB, the limit of MPI's own calls); choose a size in that range");
  if (o.fake_collectives && o.exposed)
    throw UserError("--fake-collectives and --exposed are both given (--exposed runs both kinds of updates); give one of them");
  if (o.fake_collectives && !o.trace.file.empty())
    throw UserError(
        "--trace and --fake-collectives are both given (the trace would show transfers that did not happen); leave out one of "
        "them");
}

}  // namespace

TransformerConfig config_of(const BenchOptions& options) {
  TransformerConfig config =
      override_config(options.model.empty() ? arch_config(options.arch) : read_config(options.model), options.sizes);
  config.validate();
  return config;
}

DeviceTraits traits_for(const BenchOptions& options, const TransformerConfig& config, const ShardingOptions& sharding,
                        Device& device, Communicator& world) {
  DeviceTraits traits = traits_of(device.kind(), kernels::threads());
  const AttentionChoice attention = choose_attention(options.attention_backend, config, sharding, 0, device, world);
  if (options.attention_backend == AttentionBackend::cudnn && !attention.why.empty())
    throw UserError(format("--attention-backend cudnn changes nothing ({}); leave it out", attention.why));
  traits.cudnn_head_size = attention.cudnn_head_size;
  if (options.bias_gelu_fusion) agree(world, [&] { check_bias_gelu_fusion(config, sharding.types.parameter, device.kind()); });
  traits.fuses_biases = options.bias_gelu_fusion;
  return traits;
}

std::string model_of(const BenchOptions& options) {
  return (options.model.empty() ? options.arch : options.model.string()) + options.changes;
}

std::string format_rate(double flops, DeviceKind kind) {
  return is_host(kind) ? format("{:.0f} GFLOP/s", flops / 1e9) : format("{:.1f} TFLOP/s", flops / 1e12);
}

std::string format_share(double flops, std::optional<double> peak) {
  return peak ? format("{:.0f} %", 100 * flops / *peak) : std::string("-");
}

void require_places(const PlanOptions& plan, DeviceKind kind) {
  if (is_host(kind) && offloads_to_host(plan))
    throw UserError(
        "nothing can be offloaded to the host (on CPUs all memory is host memory); leave out cpu in --offload-params and "
        "--offload-optimizer, and --cpu-offload");
}

double tokens_of_update(const ShardingOptions& sharding, BatchShape batch, const Group& world) {
  return static_cast<double>(batch.rows() * sharding.plan.micro_batches * static_cast<std::size_t>(world.size()));
}

double time_update(Executor& executor, const BatchReader& batches, std::uint64_t update, double tokens, Communicator& world) {
  executor.reset_times();
  world.barrier();
  const Timer timer;
  executor.run_update(batches, {.update = update, .learning_rate = 1e-4, .clip_norm = 1.0, .tokens = tokens});
  world.barrier();
  return timer.seconds();
}

OptionTable bench_option_table(BenchOptions& options) {
  OptionTable table("fsdp-bench", "gemm|step|tuning|scaling|collectives|storage [DIR] [options]",
                    "Measures this machine and this program, as ratios of one run.");
  table.examples({"mpirun -np 4 fsdp-bench collectives", "mpirun -np 4 fsdp-bench step --arch gpt2 --bf16 --batch-size 2",
                  "mpirun -np 4 fsdp-bench tuning --arch llama-3.2-1b --bf16"});
  table.group("What");
  table
      .text("what", "gemm|step|tuning|scaling|collectives|storage", options.what,
            "What to measure. gemm: matrix products of a model's layers; step: whole updates on random tokens; tuning: updates "
            "with batches of 1 (or --batch-size), 2, 4, ... until they do not fit, for every strategy, with and without "
            "recomputation; scaling: updates on 1, 2, 4, ... of the job's nodes, which it starts itself; collectives: ours and "
            "MPI's own (for GPUs only ours), or with --arch or --model those of an update of that model; storage: a file for "
            "state in DIR, and a plain loop")
      .positional()
      .common();
  table
      .path("folder", "DIR", options.folder,
            "storage: the folder of --nvme-path in your run; it needs room for two files of --file-size for each rank")
      .positional();
  table.text("arch", "NAME", options.arch, "model; see fsdp-train --list-archs")
      .sets("architecture")
      .sets("list of architectures", "fsdp-train --list-archs")
      .common();
  add_batch_options(table, options.sharding);
  table
      .path("model", "DIR", options.model,
            "Hugging Face folder, instead of --arch: its config.json defines the model; weights are not read.")
      .unset("as --arch")
      .common();
  add_size_options(table, options.sizes);
  add_strategy_option(table, options.sharding.strategy);
  add_group_option(table, options.sharding.shard_group_size);
  add_recomputation_option(table, options.sharding.plan.checkpoint_activations);
  add_precision_options(table, options.sharding.types.parameter);
  add_kept_type_options(table, options.sharding.types);
  add_invariance_option(table, options.sharding, options.comm);
  add_offload_options(table, options.sharding, &options.execution.nvme_path);
  table.flag("fake-collectives", options.fake_collectives,
             "step: skip all transfers of parameters and gradients; everything else follows the plan. Losses are meaningless.");
  table.flag("exposed", options.exposed,
             "step: alternate updates with and without transfers; the difference is the exposed communication.");
  add_trace_options(table, options.trace);
  table
      .size("memory-limit", "SIZE", options.memory_limit,
            "tuning: memory that a rank may use. The batch size doubles as long as fsdp-train's memory plan fits and the last "
            "doubling brought at least 5 % more tokens/s.",
            std::size_t{1} << 20)
      .unset("the rank's share of its node's available memory, or the memory of its GPU");
  table.group("How");
  add_device_option(table, options.device, " A GPU's work is timed by its own events.");
  add_attention_option(table, options.attention_backend);
  add_bias_gelu_option(table, options.bias_gelu_fusion);
  table.integer("steps", "N", options.steps, {1, 1e6}, "counted updates, after two that are not counted (tuning: one)")
      .common();
  add_threads_option(table, options.threads);
  table.size("file-size", "SIZE", options.file_bytes,
             "storage: size of each rank's file, a multiple of 4MiB; a drive's cache can be larger than small files",
             std::size_t{4} << 20);
  table.size("max-size", "SIZE", options.largest_bytes, "largest buffer of collectives, at least 4KiB");
  add_comm_options(table, options.comm);
  add_comm_thread_option(table, options.comm_thread);
  add_gemm_algorithms_option(table, options.execution.gemm_algorithms);
  add_state_type_option(table, options.sharding.optimizer.state_type);
  table.group("Scaling");
  table.integer("nodes", "N", options.nodes, {1, 1e5}, "nodes of the job to use").unset("all of them");
  table.integer("ranks-per-node", "N", options.ranks_per_node, {1, 1e4}, "ranks on each node")
      .unset("the job's tasks per node, else 1; on one node 2");
  table
      .integer("extrapolate", "N", options.extrapolate, {1, 1e6},
               "also predict this number of nodes (of ranks, on one node) from the largest measurement and the plan")
      .unset("none");
  table.path("out", "DIR", options.out, "also write scaling.html and scaling.csv here").unset("only printed");
  table.duration("run-limit", "TIME", options.run_limit_s, "updates on some nodes that take longer are ended: they hang");
  add_launcher_option(table, options.launcher);
  table.group("How");
  table.flag("json", options.json, "print one JSON object").common();
  table.then([&options](const OptionTable& read) {
    options.every_strategy = !read.given("sharding-strategy");
    options.names_model = read.given("arch") || read.given("model");
    if (options.what == "tuning" && !read.given("batch-size")) options.sharding.batch.B = 1;
    check(read, options);
    constexpr const char* own[] = {"what",      "nodes",    "ranks-per-node", "extrapolate", "out",
                                   "run-limit", "launcher", "json",           "update-freq"};
    for (const auto& [name, value] : read.values())
      if ((read.given(name) || read.changed(name)) && std::find(std::begin(own), std::end(own), name) == std::end(own))
        options.of_step.push_back(format("--{}={}", name, value));
    const ConfigOverrides& sizes = options.sizes;
    for (const auto& [name, value] : {std::pair{"decoder-layers", sizes.layers},
                                      {"decoder-embed-dim", sizes.width},
                                      {"decoder-ffn-embed-dim", sizes.ffn_width},
                                      {"decoder-attention-heads", sizes.heads},
                                      {"decoder-kv-heads", sizes.kv_heads},
                                      {"vocab-size", sizes.vocab_size}})
      if (value) options.changes += format(" --{} {}", name, *value);
    for (const char* name : {"share-decoder-input-output-embed", "decoder-learned-pos", "no-scale-embedding", "activation-fn"})
      if (read.given(name)) options.changes += format(" {}", read.typed(name));
  });
  return table;
}

std::string bench(const BenchOptions& options, Communicator& world) {
  const ComputingRank rank = start_rank(options.device, options.threads, world, {.communication_thread = options.comm_thread});
  Device& device = *rank.device;
  const auto stream = device.make_stream();
  if (options.what == "gemm") return bench_gemm(options, rank.cpus, world, device, *stream);
  if (options.what == "step") return bench_step(options, rank.cpus, world, *rank.node, device, *stream);
  if (options.what == "tuning") return bench_tuning(options, world, *rank.node, device);
  if (options.what == "collectives")
    return options.names_model ? bench_collectives_of_update(options, world, device)
                               : bench_collectives(options, world, device);
  if (options.what == "storage") return bench_storage(options, world, device);
  if (options.what == "scaling")
    throw CollectiveError(
        "scaling starts the ranks itself (this is a rank of a job); start it once in the job, without "
        "mpirun or srun, and with `scaling` as its first word",
        0, true, exit_code::wrong_use);
  throw CollectiveError(
      format("{} (choose gemm, step, tuning, scaling, collectives or storage); see fsdp-bench --help",
             options.what.empty() ? "no measurement is named" : format("'{}' is not a measurement", options.what)),
      0, true, exit_code::wrong_use);
}

}  // namespace fsdp
