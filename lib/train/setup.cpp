#include "train/setup.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <system_error>
#include <tuple>

#include "base/batch_job.hpp"
#include "base/clean_text.hpp"
#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/progress.hpp"
#include "base/system.hpp"
#include "base/version.hpp"
#include "comm/agree.hpp"
#include "comm/backend.hpp"
#include "device/file_storage.hpp"
#include "device/gpu_figures.hpp"
#include "engine/fit.hpp"
#include "files/checksum.hpp"
#include "files/json.hpp"
#include "kernels/kernels.hpp"
#include "machine/measured_rates.hpp"
#include "machine/node_places.hpp"
#include "options/model_tokenizer.hpp"
#include "plan/prediction.hpp"
#include "plan/timeline.hpp"
#include "plan/traffic.hpp"
#include "run/gemm_algorithms.hpp"
#include "text/chat_template.hpp"
#include "train/first_sequences.hpp"
#include "train/train_data.hpp"

namespace fsdp {

namespace {

/// Warns if a resumed run with --invariant will not have the same bits as a run that was never stopped. This is so if the
/// library of matrix products, the number of threads, --invariant or --batch-size has changed.
void note_arithmetic(const RunContext& run, const CheckpointHeader& before, const Machine& machine) {
  if (!run.options.sharding.plan.invariant || run.options.dry_run) return;
  const std::string made = arithmetic_of(machine);
  const auto differs = [&](const std::string& how) {
    run.log.warn(format("the results will not have the same bits as those of a run that was never stopped: {}", how));
  };
  if (const std::string& products = before.arithmetic; !products.empty() && products != made)
    differs(
        format("matrix products were computed by {} before, and are computed by {} now; --threads sets the number of threads",
               products, made));
  const nlohmann::json then = parse_json(before.options_json), now = to_json(run.options);
  for (const char* const key : {"invariant", "batch-size"})
    if (then.is_object() && then.contains(key) && then[key] != now[key])
      differs(format("--{} was {} before, and is {} now", key, json_excerpt(then[key]), json_excerpt(now[key])));
}

/// Warns of tokenizer files (`now`) that differ from the copies in the checkpoint (`kept`).
void note_changed_files(const RunContext& run, const Origin& origin, const std::vector<TokenizerFile>& kept,
                        const std::vector<TokenizerFile>& now) {
  std::set<std::string> changed;
  const auto note = [&](const std::vector<TokenizerFile>& some, const std::vector<TokenizerFile>& others) {
    for (const TokenizerFile& file : some) {
      const auto is_same = [&](const TokenizerFile& other) { return other.name == file.name && other.text == file.text; };
      if (std::none_of(others.begin(), others.end(), is_same)) changed.insert(file.name);
    }
  };
  note(kept, now), note(now, kept);
  if (!changed.empty())
    run.log.warn(format(
        "{} of {} differ from the copies in {}, and the run uses the copies; to use the changed files, give --tokenizer {}",
        fmt::join(changed, ", "), run.options.model.string(), origin.tokenizer, run.options.model.string()));
}

/// The traffic of an update between nodes; empty unless all nodes have the same number of consecutive ranks. Collective.
std::optional<NodeTraffic> traffic_of_nodes(const RunContext& run, const Machine& machine, const ShardedModel& model) {
  const Mesh& mesh = model.mesh();
  const Communicator& node = *machine.node;
  const auto nodes = narrow<int>(run.world.sum(std::int64_t{node.rank() == 0}));
  if (!run.world.all(node.size() * nodes == run.world.size() && node.rank() == run.world.rank() % node.size()))
    return std::nullopt;
  const Cluster cluster = {nodes, node.size(), find_backend(run.options.comm.kind).between};
  const ClusterTraffic traffic = traffic_of_cluster(
      collectives_of_update(model.plan().update, run.options.sharding.plan.micro_batches), mesh.shape, cluster);
  const bool by_rings = mesh.device_groups && run.options.comm.sum_order == SumOrder::library;
  return NodeTraffic{nodes, traffic.rank.total(), by_rings ? traffic.ring_out_of_node : traffic.out_of_node};
}

/// "7 projections of a block, embedding, head": the modules with adapters, in the first block that has some.
std::string adapted_modules(const Transformer& model) {
  std::size_t count = 0;
  int block = -1;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.block < 0 || parameter.name.find(".lora_") == std::string::npos) continue;
    if (block < 0) block = parameter.block;
    count += parameter.block == block;
  }
  std::vector<std::string> parts;
  if (count > 0) parts.push_back(format("{} of a block", plural(count / 2, "projection")));
  if (model.uses().embedding_adapter.lora_a >= 0) parts.emplace_back("embedding");
  if (model.uses().head_adapter.lora_a >= 0) parts.emplace_back("head");
  return format("{}", fmt::join(parts, ", "));
}

/// The adapters of a run for the start line, which the page shows.
nlohmann::json adapter_fields(const Transformer& model, const BaseModel& base) {
  const TransformerConfig& config = model.config();
  std::set<std::string> targets;  // the last names of the modules, as "q_proj"
  for (const Parameter& parameter : model.parameters())
    if (const std::size_t end = parameter.name.find(".lora_"); end != std::string::npos) {
      const std::string module = parameter.name.substr(0, end);
      targets.insert(module.substr(module.rfind('.') + 1));
    }
  return {{"rank", config.lora.rank},
          {"alpha", config.lora.alpha},
          {"scale", config.lora.scale()},
          {"targets", targets},
          {"base", base.path},
          {"base_type", config.base_type ? nlohmann::json(name_of(*config.base_type)) : nlohmann::json()}};
}

std::string describe_traffic(int shard_ranks, int node_ranks, const NodeTraffic& traffic) {
  const auto bytes = [](std::uint64_t n) { return format_bytes(static_cast<double>(n)); };
  const std::string where = traffic.nodes == 1 ? "" : node_ranks % shard_ranks == 0 ? " within a node" : " on several nodes";
  return format("shards: {}; for an update a rank sends {}{}",
                shard_ranks == 1 ? "none" : format("groups of {} ranks{}", shard_ranks, where), bytes(traffic.sent),
                traffic.nodes == 1 ? "" : format(", and a node sends {} to other nodes", bytes(traffic.out_of_node)));
}

/// Throws UserError if the node has too little memory. Without this check, Linux grants more memory than exists, and later
/// kills the process when it uses the memory.
void require_memory(const RunContext& run, const Machine& machine, const MemoryAccount& memory) {
  const bool on_cpu = is_host(memory.device);  // on a GPU, allocation itself fails
  const std::size_t mine = on_cpu ? memory.total() : memory.on_host();
  const std::int64_t together = machine.node->sum(narrow<std::int64_t>(mine));
  agree(run.world, [&] {
    const std::size_t available = available_memory_bytes();
    if (static_cast<std::size_t>(together) > available)
      throw UserError(
          format("there is too little memory (by the plan above {} {} each, and {} are available); use more nodes{}",
                 machine.node->size() == 1 ? "the rank on this node needs"
                                           : format("the {} ranks on this node need", machine.node->size()),
                 format_bytes(static_cast<double>(mine)), format_bytes(static_cast<double>(available)),
                 on_cpu ? ", a smaller --batch-size, --checkpoint-activations or --sharding-strategy full"
                        : ", or offload less of the model, or nothing"));
  });
}

/// Returns a line about the traffic with the disk of this node; "" if no state is in a file.
std::string on_disk(const Plan& plan, int node_ranks) {
  const DiskTraffic disk = disk_traffic(plan);
  return disk.any() ? wrapped("  " + describe_disk_traffic(disk, node_ranks, "this node")) + "\n" : "";
}

/// Fills this rank's shard with weights and optimizer state. May throw on one rank and not on others.
void fill_shard(const LoopContext& loop, const Origin& origin) {
  ShardedModel& model = loop.engine.model();
  Executor& executor = loop.engine.executor();
  const auto& parameters = loop.engine.parameters();
  const auto load = [&](const char* what, const auto& work) {  // rank 0 shows the progress of its own part
    with_progress(what, [&](const ByteProgress& progress) { work(loop.world.rank() == 0 ? progress : nullptr); });
  };
  if (origin.checkpoint) {
    load("loading the checkpoint", [&](const ByteProgress& progress) {
      loop.engine.load_states(*origin.checkpoint, !loop.options.reset_optimizer, progress);
    });
    if (origin.base)
      load("loading the base model", [&](const ByteProgress& progress) {
        load_parameters(*origin.pretrained, parameters, model.layout(), model.shard(),
                        only_units(executor.parameters(), model.layout(), false), origin.fresh, progress);
      });
    if (!loop.options.reset_optimizer)
      if (const std::string text = describe_new_states(model.layout(), parameters, *origin.checkpoint); !text.empty())
        loop.log.warn(text);
    return;
  }
  if (origin.pretrained) {
    load("loading the model", [&](const ByteProgress& progress) {
      load_parameters(*origin.pretrained, parameters, model.layout(), model.shard(), executor.parameters(), origin.fresh,
                      progress);
    });
    executor.initialize_parameters(loop.options.seed, origin.fresh);
    if (origin.adapter) {
      std::vector<bool> fresh;
      for (const Parameter& parameter : parameters) fresh.push_back(!parameter.is_adapter);
      load_parameters(*origin.adapter->tensors, parameters, model.layout(), model.shard(),
                      only_units(executor.parameters(), model.layout(), true), fresh);
    }
  } else {
    executor.initialize_parameters(loop.options.seed);
  }
  if (loop.engine.keeps_average()) executor.begin_average();
}

/// How a run on this machine uses the files of --measured.
MeasuredUse measured_use_here(const TrainOptions& options, const Machine& machine, int ranks) {
  const bool on_cpu = is_host(machine.kind);
  const int per_node = machine.node->size();
  MeasuredUse use = measured_use(options, {.nodes = ranks / per_node, .ranks_per_node = per_node},
                                 on_cpu ? nullptr : figures_of(machine.device->description()));
  use.device = machine.device->description();
  use.ranks = ranks, use.threads = machine.cpus.threads, use.cores = on_cpu ? machine.cpus.cores : 0;
  return use;
}

/// Throws UserError if --measured cannot be used.
void require_measured(const TrainOptions& options, const Machine& machine, int ranks) {
  if (options.measured.empty()) return;
  const MeasuredUse use = measured_use_here(options, machine, ranks);
  if (!is_host(machine.kind) && !use.gpu)
    throw UserError(
        format("--measured does not go with this GPU ({}; figures of its data sheet are not known); leave it out", use.device));
  if (!use.gpu && use.ranks != use.ranks_per_node)
    throw UserError(
        "--measured predicts CPUs of one node (rates of a network are not measured); leave it out, or use one node");
  measured_rates(options.measured, use, {});
}

}  // namespace

Machine find_machine(const TrainOptions& options, Communicator& world) {
  if (options.dry_run) {
    const DeviceKind kind = kind_to_plan_for(options.device);
    agree(world, [&] { check_cpu_options(kind, options.cpu), check_gemm_algorithms(options.execution.gemm_algorithms, kind); });
    return {start_rank_to_plan(options.threads, world, options.cpu), kind};
  }
  Machine machine = {start_rank(options.device, options.threads, world, options.cpu)};
  machine.kind = machine.device->kind();
  agree(world, [&] {
    check_gemm_algorithms(options.execution.gemm_algorithms, machine.kind);
    require_measured(options, machine, world.size());
  });
  // Runs one matrix product to load the library's code, so that the memory of that code does not count as memory of the run.
  std::array<float, 5 * 64> x{};  // enough rows that the library computes the product, not our own kernel for few rows
  kernels::gemm(*make_host_stream(), kernels::Trans::no, kernels::Trans::no, 16, 8, 8, &x[0], 8, &x[128], 8, &x[192], 8,
                kernels::Write::overwrite);
  const DType type = options.sharding.types.parameter;
  if (!is_host(machine.kind)) {
    machine.peak_flops = peak_of_gpus(*machine.device, type, world);
  } else {
    const CorePeak peak = peak_of_cores(type, machine, world);
    machine.peak_flops = peak.flops;
    machine.measured_peak = peak.measured;
    if (peak.measured) restart_process_peak();
  }
  machine.start_bytes = process_peak_bytes();
  return machine;
}

void find_attention(const RunContext& run, const Origin& origin, Machine& machine) {
  const TrainOptions& options = run.options;
  machine.attention = machine.device ? choose_attention(options.attention_backend, origin.config, options.sharding,
                                                        options.attention_dropout, *machine.device, run.world)
                                     : plan_attention(options.attention_backend, origin.config, options.sharding,
                                                      options.attention_dropout, machine.kind);
  const AttentionChoice& now = machine.attention;
  if (!now.why.empty())
    run.log.say(wrapped(format("attention by the kernels of fsdp: {}", now.why)));
  else if (!now.library.empty())
    run.log.say("attention by " + now.library);
  if (!origin.checkpoint || options.dry_run || is_host(machine.kind)) return;
  if (const std::string changed = describe_changed_attention(origin.checkpoint->header().attention, now.library);
      !changed.empty())
    run.log.warn(changed + "; --attention-backend sets it");
}

std::string arithmetic_of(const Machine& machine) {
  if (!is_host(machine.kind)) return machine.device->description();
  return format("{}, {} per rank", kernels::gemm_description(), plural(machine.cpus.threads, "thread"));
}

void open_metrics(const RunContext& run) {
  agree(run.world, [&] {
    if (!run.options.tensorboard.empty()) run.log.to_tensorboard(run.options.tensorboard);
    run.log.to_file(run.options.log_file);
  });
}

std::unique_ptr<SaveLock> take_save_folder(const RunContext& run, SignalWatch& watch) {
  const double timeout_s = run.options.comm.timeout_s;
  bool stopped = false;
  std::unique_ptr<SaveLock> lock;
  work_meanwhile(
      run.world, run.world.rank() == 0 && !run.options.dry_run,
      [&](const std::function<bool()>& stop) {
        try {
          lock = std::make_unique<SaveLock>(run.options.save.folder, 5,
                                            EarlierStart{.patience_s = timeout_s > 0 ? 1.25 * timeout_s + 60 : HUGE_VAL,
                                                         .say = [&](const std::string& text) { run.log.say(text); },
                                                         .stop = stop});
          run.log.take_file();  // not before: an earlier start of this job may have it
        } catch (const RunError&) {
          stopped = stop();
          if (!stopped) throw;
        }
      },
      [&] { return watch.poll().stop > 0; });
  if (!run.world.all(!stopped))
    throw CollectiveError("stopped on request, before training began; the same command continues", 0, true, exit_code::stopped);
  return lock;
}

std::vector<std::string> options_of_first_start(const TrainOptions& options) {
  std::vector<std::string> given;
  if (options.restore != "latest") given.push_back("--restore");
  if (options.reset_optimizer) given.push_back("--reset-optimizer");
  if (options.reset_dataloader) given.push_back("--reset-dataloader");
  return given;
}

std::string first_start_of(const TrainOptions& options) {
  // A job that is submitted again has a new number, so slurm/other-schedulers.sh passes on the first one.
  const char *const first = std::getenv("FSDP_FIRST_JOB"), *const cluster = std::getenv("SLURM_CLUSTER_NAME");
  const std::string job = first ? first : batch_job().id;
  if (job.empty()) return "";
  return format("job {} of {}: {} ({})", job, cluster ? cluster : "a cluster", fmt::join(options_of_first_start(options), " "),
                options.restore);
}

void drop_options_of_first_start(const RunContext& run, TrainOptions& options) {
  const std::vector<std::string> given = options_of_first_start(options);
  if (options.dry_run || given.empty()) return;
  const auto applied = agree(run.world, [&] {
    // slurm/job.sh sets the latter if it starts the run again within a start of the job, slurm/other-schedulers.sh if the job
    // was submitted again.
    if (run.world.rank() != 0 || number_in_environment("SLURM_RESTART_COUNT") + number_in_environment("FSDP_STARTS_AGAIN") == 0)
      return false;
    try {
      const auto latest = latest_checkpoint(options.save.folder);
      return latest && CheckpointReader::open(*latest, Verify::no)->header().first_start == first_start_of(options);
    } catch (const RunError&) {  // find_origin() reports the damage
      return false;
    }
  });
  if (run.world.sum(std::int64_t{applied}) == 0) return;
  run.log.say(format("{} {} not applied again: an earlier start of this job has done that, and the run continues from its save",
                     fmt::join(given, " and "), given.size() == 1 ? "is" : "are"));
  options.restore = "latest", options.reset_optimizer = options.reset_dataloader = false;
}

std::unique_ptr<TraceFile> open_trace(const RunContext& run) {
  const std::filesystem::path& file = run.options.trace.file;
  return agree(run.world, [&] {
    const bool writes = run.world.rank() == 0 && !run.options.dry_run && !file.empty();
    return writes ? std::make_unique<TraceFile>(file, whole_path(run.options.save.folder)) : nullptr;
  });
}

Progress first_progress(const RunContext& run, const Origin& origin, const Machine& machine) {
  Progress progress;
  if (origin.checkpoint) {
    progress = origin.checkpoint->header().progress;
    note_arithmetic(run, origin.checkpoint->header(), machine);
  }
  if (run.options.reset_optimizer) progress.optimizer_began = progress.update;
  return progress;
}

Engine make_engine(const RunContext& run, const Origin& origin, const Machine& machine, const SaveLock* lock) {
  EngineOptions options = run.options;
  agree(run.world, [&] {
    check_sharding(origin.config, options.sharding, run.world.size());
    if (run.options.bias_gelu_fusion) check_bias_gelu_fusion(origin.config, options.sharding.types.parameter, machine.kind);
  });
  if (is_host(machine.kind) && offloads_to_host(options.sharding.plan))
    run.log.say("nothing is offloaded to the host: on CPUs all memory is the host's");
  if (options.sharding.plan.places.on_disk() && run.options.save.meanwhile())
    run.log.say("training waits for each save: the state is in files, and a copy of it in memory might not fit");
  options.sharding = options_for(machine.kind, options.sharding);
  if (run.options.chooses_blocks) {
    agree(run.world, [&] {
      if (!machine.device && !is_host(machine.kind) && options.memory_limit == 0)
        throw UserError(
            "--recompute-num-layers auto needs the memory of a GPU (a dry run does not look for one); give --memory-limit "
            "SIZE, or the number of blocks");
    });
    options.recompute_to_fit = options.memory_limit > 0 ? options.memory_limit : free_memory_of_a_rank(machine, run.world);
  }
  const auto require_held = [lock] {
    if (lock) lock->require_held();
  };
  DeviceTraits traits = traits_of(machine.kind, machine.cpus.threads);
  traits.cudnn_head_size = machine.attention.cudnn_head_size;
  traits.fuses_biases = run.options.bias_gelu_fusion;
  return Engine(std::make_shared<const Transformer>(origin.config, traits), std::move(options), run.world,
                run.options.save.meanwhile(),
                {.may_begin = require_held,
                 .may_complete =
                     [&log = run.log, require_held] {
                       require_held();
                       log.sync();  // the metrics file then has every update of the checkpoint
                     },
                 .saved = [&log = run.log](const SaveMetrics& saved) { log.save(saved); },
                 .warn = [&log = run.log](const std::string& text) { log.warn(text); }});
}

std::shared_ptr<const std::vector<TokenizerFile>> keep_tokenizer_files(const RunContext& run, const Origin& origin) {
  const TrainOptions& options = run.options;
  return agree(run.world, [&] {
    std::shared_ptr<const std::vector<TokenizerFile>> kept;
    if (run.world.rank() != 0 || origin.tokenizer.empty()) return kept;
    const auto with_template = [&](std::vector<TokenizerFile> files) {
      if (options.chat_template.empty()) return files;
      constexpr const char* name = "chat_template.jinja";
      std::erase_if(files, [&](const TokenizerFile& file) { return file.name == name; });
      files.push_back({name, text_of_chat_template(options.chat_template)});
      return files;
    };
    kept = std::make_shared<const std::vector<TokenizerFile>>(with_template(read_files_of_tokenizer(origin.tokenizer)));
    if (origin.checkpoint && options.tokenizer.empty() && has_tokenizer(options.model) && !options.grows_vocabulary())
      note_changed_files(run, origin, *kept, with_template(read_tokenizer_files(options.model)));
    return kept;
  });
}

void require_disk(const RunContext& run, const Machine& machine, const MemoryAccount& memory,
                  const std::filesystem::path& folder) {
  const auto together = static_cast<std::size_t>(machine.node->sum(narrow<std::int64_t>(memory.on_disk)));
  std::string warning;
  agree(run.world, [&] {
    if (together == 0) return;
    warning = check_storage_folder(folder);
    const std::size_t free = free_bytes_of(folder);
    if (together > free)
      throw UserError(format(
          "{} has too little free space (the state of this node's ranks needs {}, and {} are free); free some, "
          "give --nvme-path a folder on a larger disk, or use more nodes",
          one_line(folder.string()), format_bytes(static_cast<double>(together)), format_bytes(static_cast<double>(free))));
  });
  if (!warning.empty()) run.log.warn(with_option_names(warning));
}

void print_plan(const ShardedModel& model, const MemoryAccount& memory, int node_ranks) {
  const Layout& layout = model.layout();
  std::printf("units:\n");
  const auto& units = layout.units();
  const auto alike = [](const Unit& a, const Unit& b) {
    return a.parameters.size() == b.parameters.size() && a.numel == b.numel && a.padded_numel == b.padded_numel &&
           a.types == b.types;
  };
  for (std::size_t first = 0, end; first < units.size(); first = end) {
    std::size_t period = 1;  // of units that are repeated: a block has one, or several
    end = first + 1;
    for (std::size_t p = 1; p <= 3; ++p) {
      std::size_t last = first + p;
      while (last < units.size() && alike(units[last - p], units[last])) ++last;
      last -= (last - first) % p;
      if (last > end && last - first > p) period = p, end = last;
    }
    for (std::size_t u = first; u < first + period; ++u) {
      const Unit &unit = units[u], &other = units[end - period + u - first];
      const std::string name = u + period == end ? unit.name : format("{} to {} (each)", unit.name, other.name);
      std::printf("  %-30s %4zu tensors  %12zu elements  %12zu with padding  %s\n", name.c_str(), unit.parameters.size(),
                  unit.numel, unit.padded_numel,
                  format_bytes(static_cast<double>(unit.padded_numel * size_of(unit.types.parameter))).c_str());
    }
  }
  std::printf("memory plan per rank:\n%s%s%soperations of one update:\n%s\n%s", describe_memory(model.plan()).c_str(),
              describe_beside_plan(memory).c_str(), on_disk(model.plan(), node_ranks).c_str(),
              describe_operations(model.plan(), model.plan().update, layout).c_str(),
              draw_timeline(model.plan().update, layout, model.transformer().block_numel()).c_str());
}

namespace {

/// What the plan predicts, and where the run is: fields of the start line. `even_nodes`: all nodes have as many ranks as rank
/// 0's.
nlohmann::json start_fields(const RunContext& run, const Machine& machine, const ShardedModel& model, const TrainData* data,
                            bool even_nodes) {
  nlohmann::json fields;
  const auto bytes = memory_by_role(model.plan());
  for (std::size_t role = 0; role < bytes.size(); ++role)
    if (bytes[role] > 0) fields["plan_bytes"][std::string(name_of(static_cast<BufferRole>(role)))] = bytes[role];
  const auto from_environment = [&](const char* field, const char* variable) {
    if (const char* const value = std::getenv(variable)) fields[field] = value;
  };
  from_environment("modules", "LOADEDMODULES");
  if (const BatchJob job = batch_job(); job.scheduler == Scheduler::slurm)
    fields["slurm_job"] = job.id;
  else if (!job.id.empty())
    fields["batch_job"] = job.description();
  fields["host"] = host_name();
  if (is_host(machine.kind)) fields["threads"] = machine.cpus.threads, fields["cores"] = machine.cpus.cores;
  if (!run.options.trace.file.empty()) fields["trace"] = whole_path(run.options.trace.file);
  const GpuFigures* const gpu = is_host(machine.kind) ? nullptr : figures_of(machine.device->description());
  const bool one_node = machine.node->size() == run.world.size();
  if ((gpu ? one_node || !gpu->network.empty() : one_node && is_host(machine.kind) && !run.options.measured.empty()) &&
      even_nodes && !run.options.sharding.plan.places.on_disk()) {
    const Cluster cluster = {run.world.size() / machine.node->size(), machine.node->size(), Between::nodes,
                             run.options.comm.sum_order};
    ShardingOptions sharding = run.options.sharding;
    if (data) sharding.batch.T = std::max<std::size_t>(1, std::llround(data->padding.columns(sharding.batch.T)));
    const Rates rates =
        measured_rates(run.options.measured, measured_use_here(run.options, machine, run.world.size()),
                       gpu ? rates_of(*gpu, model.transformer(), sharding.types.parameter, network_of(*gpu)) : Rates());
    const StepPrediction step = UpdateSimulation(model.transformer(), sharding, model.mesh().shape, cluster).predict(rates);
    for (const auto& [name, seconds] : step_parts()) fields["predicted"][name] = step.*seconds;
  }
  return fields;
}

}  // namespace

void announce(const RunContext& run, const Machine& machine, const ShardedModel& model, const MemoryAccount& memory,
              const Progress& progress, const TrainData* data, const Origin& origin) {
  const Plan& plan = model.plan();
  const Transformer& transformer = model.transformer();
  const bool on_cpu = is_host(machine.kind);
  const auto say = [&](const std::string& line) { run.log.say(wrapped(line)); };
  say(format("fsdp {}: {}, {}{}", version_string(), machine.device->description(),
             on_cpu ? format("{} per rank, ", plural(machine.cpus.threads, "thread") +
                                                  (run.options.cpu.communication_thread ? " and one for communication" : ""))
                    : std::string(),
             run.world.description()));
  if (on_cpu) say("matrix products by " + kernels::gemm_description());
  if (machine.measured_peak)
    say(
        format("MFU refers to {:.0f} GFLOP/s of all ranks in {}, measured just now and stored for later runs; if other "
               "programs were running, measure again with fsdp-bench gemm",
               *machine.peak_flops / 1e9, name_of(run.options.sharding.types.parameter)));
  if (const DType type = run.options.sharding.types.parameter; on_cpu && !kernels::multiplies(type))
    run.log.warn(
        format("{} matrix products convert their operands to fp32 here (this CPU has no instructions for that type): "
               "memory and transfers are halved, but a step takes longer than with --precision fp32",
               name_of(type)));
  const BatchCut cut = batch_cut(run.options.sharding, run.world);
  std::size_t trained = 0;
  for (const Unit& unit : model.layout().units()) trained += unit.trainable ? unit.numel : 0;
  say(format("model: {} parameters{}, {}, width {}; strategy {} over {}; {} of {} tokens per update",
             format_count(static_cast<double>(transformer.parameter_count())),
             trained == transformer.parameter_count()
                 ? ""
                 : format(" ({}, {:.3g} %, trained, the others frozen)", format_count(static_cast<double>(trained)),
                          100 * static_cast<double>(trained) / static_cast<double>(transformer.parameter_count())),
             plural(transformer.blocks.size(), "block"), transformer.config().width, model.placement().name,
             plural(run.world.size(), "rank"), plural(cut.sequences_per_update(), "sequence"), cut.T));
  if (const auto& [lora, type] = std::tie(transformer.config().lora, transformer.config().base_type); lora.rank > 0)
    say(format("adapters: rank {}, scale {:.4g}, {}; base model {}{} with checksum {}", lora.rank, lora.scale(),
               adapted_modules(transformer), origin.base->path, type ? format(" in {}", kernels::name_of(*type)) : "",
               checksum_text(origin.base->sum)));
  const int shard_ranks = model.mesh().shard().size();
  const std::optional<NodeTraffic> traffic = traffic_of_nodes(run, machine, model);
  if (traffic && run.world.size() > 1) say(describe_traffic(shard_ranks, machine.node->size(), *traffic));
  run.log.say("memory plan per rank:\n" + describe_memory(plan) + describe_beside_plan(memory) +
              on_disk(plan, machine.node->size()));
  const nlohmann::json options = to_json(run.options);
  nlohmann::json more = start_fields(run, machine, model, data, traffic.has_value());
  if (data) more["data"] = data->counts();
  if (data && run.world.rank() == 0 && !run.options.log_file.empty() && !origin.tokenizer.empty()) try {
      more["first_sequences"] =
          first_sequences(data->batches, progress.data.sequences, std::min<std::uint64_t>(3, data->mixture.sequences()),
                          origin.tokenizer, origin.config.vocab_size);
    } catch (const std::exception& error) {  // other ranks do not wait for it
      run.log.warn(format("the page shows no samples of the data ({})", error.what()));
    }
  more["trained_parameters"] = trained;
  if (origin.base) more["adapters"] = adapter_fields(transformer, *origin.base);
  run.log.start({.version = version_string(),
                 .world_size = run.world.size(),
                 .strategy = std::string(model.placement().name),
                 .options = &options,
                 .parameters = transformer.parameter_count(),
                 .plan_peak_bytes = plan.peak_bytes,
                 .step = progress.update,
                 .max_step = last_update(run.options, progress, data ? &data->batches : nullptr),
                 .shard_ranks = shard_ranks,
                 .traffic = traffic,
                 .sequences = progress.data.sequences,
                 .more = &more});
}

/// Names the library that connects GPUs and, between nodes, its network and the rate of that next to the links'.
void say_how_gpus_communicate(const LoopContext& loop) {
  const Mesh& mesh = loop.engine.model().mesh();
  if (mesh.data_description.empty()) return;
  std::string text = "collectives of GPUs: " + mesh.data_description;
  const std::vector<Link> links = find_links();
  const std::string links_text = describe(links);
  if (const double rate = loop.engine.model().network_rate(); rate > 0)
    text +=
        format(", where a node sends {:.3g} GB/s{}", rate / 1e9, links_text.empty() ? "" : " (its links: " + links_text + ")");
  loop.log.say(wrapped(text));
  if (!mesh.device_groups) return;
  if (const std::string advice = advise_network(mesh.device_groups->network, links); !advice.empty())
    loop.log.warn(format("NCCL uses TCP between nodes, although this node has a faster network; {}", advice));
}

void prepare(const LoopContext& loop, const Machine& machine, const MemoryAccount& memory, Origin& origin, Observer& flight) {
  const FlightNote note(loop.flight, "prepare the run", 0);
  require_memory(loop, machine, memory);
  require_disk(loop, machine, memory, loop.options.execution.nvme_path);
  Engine& engine = loop.engine;
  engine.allocate(*machine.device);
  say_how_gpus_communicate(loop);
  engine.executor().observe(flight);
  if (origin.checkpoint)
    if (const std::string changed =
            describe_changed_algorithms(origin.checkpoint->header().gemm_algorithms, engine.model().gemm_algorithms());
        !changed.empty())
      loop.log.warn(changed);
  const Timer timer;
  agree(loop.world, [&] { fill_shard(loop, origin); });
  Progress& progress = engine.progress();
  if (loop.options.reset_optimizer) progress.states_began.clear(), progress.loss_scaler.reset(), progress.spikes.reset();
  engine.restore_policy();
  engine.start(
      !origin.checkpoint || loop.options.reset_optimizer ? nullptr : std::function<bool(std::size_t)>([&](std::size_t p) {
        return origin.checkpoint->was_trained(engine.parameters()[p].name);
      }));
  if (origin.checkpoint) {
    const double ms = timer.seconds() * 1e3;
    const std::size_t most = loop.world.max(origin.checkpoint->bytes_read());
    loop.log.restore(progress.update, origin.checkpoint->description(), ms, most, origin.checkpoint->file_bytes());
  }
  origin.checkpoint.reset();
  origin.pretrained.reset();
  origin.adapter.reset();
}

}  // namespace fsdp
