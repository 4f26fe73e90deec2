#include "fsdp-train/rehearsal.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/save_folder.hpp"
#include "comm/launcher.hpp"
#include "comm/mpi_session.hpp"
#include "comm/threads/threads.hpp"
#include "data/open_data.hpp"
#include "data/text_source.hpp"
#include "device/file_storage.hpp"
#include "engine/memory.hpp"
#include "files/input_file.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "files/scratch_folder.hpp"
#include "job/launch.hpp"
#include "nn/families.hpp"
#include "nn/rope.hpp"
#include "nn/transformer.hpp"
#include "plan/prediction.hpp"
#include "run/gemm_algorithms.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer_files.hpp"
#include "train/origin.hpp"
#include "train/train_data.hpp"

namespace fsdp {

namespace {

namespace fs = std::filesystem;

constexpr int most_stand_ins = 8;
constexpr std::size_t head_size_of_stand_ins = 16;
/// Sequences get shorter until all updates of the stand-ins need no more: about a minute of two cores.
constexpr double most_flops = 2e12;
constexpr std::size_t shortest_sequence = 64;
/// The most text that the stand-ins tokenize, of each data set.
constexpr std::uint64_t most_text = std::uint64_t{16} << 20;

std::string bytes_text(std::uint64_t n) { return format_bytes(static_cast<double>(n)); }

constexpr std::string_view from_stand_ins = "stand-ins: ";  // begins messages of a run of the stand-ins

/// What would fail, without repetitions.
class Problems {
 public:
  explicit Problems(std::vector<std::string> found) : found_(std::move(found)) {}
  void add(const std::string& message) {
    const std::string text = with_option_names(message);
    const auto is_there = [&](std::string_view same) { return std::find(found_.begin(), found_.end(), same) != found_.end(); };
    if (!is_there(text) && !(text.starts_with(from_stand_ins) && is_there(text.substr(from_stand_ins.size()))))
      found_.push_back(text);
  }
  /// Runs a check. Returns false, and adds the error, if it throws.
  template <class Check>
  bool passes(const Check& check) {
    try {
      check();
      return true;
    } catch (const std::exception& error) {
      add(error.what());
      return false;
    }
  }
  const std::vector<std::string>& found() const { return found_; }

 private:
  std::vector<std::string> found_;
};

/// SIGINT and SIGTERM wait while this object exists, and take effect after it. Children have their own mask.
class HeldSignals {
 public:
  HeldSignals() {
    ::sigemptyset(&held_);
    ::sigaddset(&held_, SIGINT), ::sigaddset(&held_, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &held_, &before_);
  }
  HeldSignals(const HeldSignals&) = delete;
  ~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  bool came() const {
    sigset_t pending;
    ::sigpending(&pending);
    return ::sigismember(&pending, SIGINT) == 1 || ::sigismember(&pending, SIGTERM) == 1;
  }

 private:
  sigset_t held_, before_;
};

/// The job by its plan, from the functions that fsdp-plan and the run itself use.
struct PlannedJob {
  MeshShape mesh;
  FittedPlan fitted;
  std::size_t limit = 0;  // of a rank's memory; 0: unknown
  ClusterTraffic traffic;
  std::optional<StepPrediction> step;
  std::string no_step;  // why there is no prediction
  double tokens_per_second = 0;
  std::uint64_t save_bytes = 0;
};

/// The nodes of the job may have GPUs although this machine has none: some options are only for GPUs.
DeviceKind kind_of_job(const TrainOptions& job) {
  const bool needs_gpu = (job.comm.kind != "auto" && find_backend(job.comm.kind).device_backend) || job.bias_gelu_fusion ||
                         job.comm.sum_order == SumOrder::library || !job.execution.gemm_algorithms.empty() ||
                         job.attention_backend == AttentionBackend::cudnn;
  const bool on_gpu = job.rehearsal.gpu || (needs_gpu && job.device == DeviceChoice::automatic);
  return on_gpu ? DeviceKind::cuda : kind_to_plan_for(job.device);
}

PlannedJob plan_job(const TrainOptions& job, const TransformerConfig& config) {
  const RehearsalOptions& rehearsal = job.rehearsal;
  const GpuFigures* const gpu = rehearsal.gpu;
  const DeviceKind kind = kind_of_job(job);
  const Cluster cluster = {rehearsal.nodes, rehearsal.ranks_per_node, find_backend(job.comm.kind).between, job.comm.sum_order};
  if (gpu && job.device == DeviceChoice::cpu)
    throw UserError("--gpu and --device cpu contradict each other (one plans for GPUs, the other for CPUs); leave out one");
  check_cpu_options(kind, job.cpu), check_gemm_algorithms(job.execution.gemm_algorithms, kind);
  EngineOptions options = job;
  options.sharding = options_for(kind, job.sharding);
  const Placement& placement = find_placement(options.sharding.strategy);
  if (placement.axis == ShardAxis::group && options.sharding.shard_group_size == 0)
    options.sharding.shard_group_size = cluster.ranks_per_node;
  check_sharding(config, options.sharding, cluster.ranks());
  if (job.bias_gelu_fusion) check_bias_gelu_fusion(config, options.sharding.types.parameter, kind);
  DeviceTraits traits = traits_of(kind, static_cast<int>(std::max<std::size_t>(1, job.threads)));
  traits.cudnn_head_size =
      plan_attention(job.attention_backend, config, options.sharding, job.attention_dropout, kind).cudnn_head_size;
  traits.fuses_biases = job.bias_gelu_fusion;
  PlannedJob planned;
  planned.limit = job.memory_limit > 0 ? job.memory_limit : gpu ? static_cast<std::size_t>(gpu->memory_bytes) : 0;
  if (job.chooses_blocks) options.recompute_to_fit = planned.limit;
  planned.mesh = mesh_shape(placement, cluster.ranks(), options.sharding.shard_group_size);
  planned.fitted = fit_plan(std::make_shared<const Transformer>(config, traits), options, planned.mesh, cluster,
                            {.snapshot = job.save.meanwhile()});
  PlanOptions& plan = options.sharding.plan;
  plan.recomputed_blocks = planned.fitted.recomputed_blocks, plan.offloaded_inputs = planned.fitted.offloaded_inputs;
  const auto& model = dynamic_cast<const Transformer&>(*planned.fitted.model);
  const ShardedPlan sharded = plan_two_micro_batches(model, options.sharding, planned.mesh);
  planned.traffic = traffic_of_cluster(collectives_of_update(sharded.plan.update, plan.micro_batches), planned.mesh, cluster);
  std::vector<std::string> states = states_of(options.sharding.optimizer, model.parameters());
  states.insert(states.begin(), parameters_state);
  if (plan.average_weights) states.emplace_back(average_state);
  planned.save_bytes = tensor_bytes(sharded.layout, states);
  if (!gpu)
    planned.no_step = "give --gpu NAME for a prediction";
  else if (cluster.nodes > 1 && gpu->network_bandwidth == 0)
    planned.no_step = format("{} has no figure for a network between nodes", gpu->name);
  else if (plan.places.on_disk())
    planned.no_step = "fsdp-plan predicts state in a file with --nvme-bandwidth";
  else
    planned.step = predict_update(model, options.sharding, planned.mesh, cluster, *gpu),
    planned.tokens_per_second = tokens_per_second(*planned.step, options.sharding, cluster);
  return planned;
}

/// The nearest folder above `path` that exists.
fs::path existing_parent(const fs::path& path) {
  fs::path parent = fs::absolute(path).lexically_normal();
  do parent = parent.has_filename() ? parent.parent_path() : parent.parent_path().parent_path();
  while (kind_of(parent) == PathKind::missing);
  return parent;
}

/// Opens everything that the job reads, each by itself, so that all problems are found. Returns true if there is none.
bool look_at_data(const TrainOptions& job, Problems& problems) {
  bool sound = !job.data.empty();
  const auto check = [&](const auto& work) { sound &= problems.passes(work); };
  const auto open_split = [](const std::string& name, Split split) { texts_in(name, split), try_opening(name, split); };
  if (sound) check([&] { open_split(job.data, Split::train); });
  check([&] {
    const std::string valid = valid_name(job);
    if (!valid.empty()) require_no_weights(valid), open_split(valid, Split::valid);
  });
  for (const std::string& mask : {job.mask, job.valid_mask}) check([&] { open_masks(mask); });
  if (const fs::path& file = job.execution.gemm_algorithms; !file.empty()) check([&] { InputFile opened(file); });
  std::unique_ptr<Tokenizer> tokenizer;
  if (!job.tokenizer.empty()) check([&] { tokenizer = open_tokenizer(job.tokenizer); });
  if (!job.chat_template.empty() && tokenizer) check([&] { read_chat_template(job.chat_template, *tokenizer); });
  return sound;
}

/// Finds what the job starts from, without weights. Throws UserError.
Origin find_start(TrainOptions job) {
  job.dry_run = true;
  if (job.restore == "latest")  // a dry run only warns of a checkpoint that does not fit
    if (const auto latest = latest_checkpoint(job.save.folder)) job.restore = latest->string();
  const auto self = make_self_communicator();
  Origin origin = find_origin(job, *self);
  if (origin.config.lora.rank > 0 && !origin.pretrained)  // a dry run plans them all the same
    throw UserError(
        "adapters have no base model (they change a model that is trained already); give --model DIR or --finetune-from PATH");
  if (!job.save.none) {
    if (const auto newest = latest_update(job.save.folder); newest > origin.update())
      throw UserError(
          format("{} has steps up to {}, but the run would start from step {} (later steps are not overwritten); "
                 "choose another --save-dir or move them away",
                 job.save.folder.string(), *newest, origin.update()));
    if (const auto step = step_in_the_way(job.save.folder, origin.update())) throw UserError(text_of_step_in_the_way(*step));
  }
  return origin;
}

/// Copies the beginnings of texts into `folder`, one file for each set. Returns their name as data.
std::string cut_texts(const std::vector<TextSet>& texts, const TrainOptions& job, const fs::path& folder) {
  fs::create_directories(folder);
  std::vector<std::string> names;
  for (const TextSet& set : texts) {
    TextSource source(set.files);
    const bool is_json = job.chat || !source.json_field(job.json_field, "text", [](const std::string&) {}).empty();
    std::string text;
    while (text.size() < most_text && source.read(text, most_text - text.size()) > 0) {
    }
    if (const std::size_t end = text.rfind('\n'); text.size() >= most_text && end != text.npos) text.resize(end + 1);
    const fs::path path = folder / format("{}.{}", names.size(), is_json ? "jsonl" : "txt");
    write_text_file_durably(path, text);
    names.push_back(path.string());
  }
  return format("{}", fmt::join(names, ","));
}

/// Returns the name of data for the stand-ins: those of the job, or the beginnings of its texts if they are long.
std::string data_for_stand_ins(const std::string& name, Split split, const TrainOptions& job, const fs::path& folder,
                               std::vector<std::string>& cut) {
  if (name.empty()) return "";
  const std::vector<TextSet> texts = texts_in(name, split);
  std::uint64_t size = 0;
  for (const TextSet& text : texts) size += TextSource(text.files).size_of_files();
  if (size <= 4 * most_text) return name;
  if (texts.size() < sets_in(name).size())
    throw RunError(
        format("the stand-ins did not run, because {} is partly text, which has {} and would be tokenized first; make "
               "tokens of it with fsdp-tokenize",
               name, bytes_text(size)));
  cut.push_back(format("only the first {} of each of the texts {}", bytes_text(most_text), name));
  return cut_texts(texts, job, folder);
}

/// What a run says was wrong: its own message, else its last line.
std::string error_in(const ChildEnd& end) {
  constexpr std::string_view begin = "fsdp-train: ";
  std::istringstream lines(end.err);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(begin)) return line.substr(begin.size());
    if (line.find_first_not_of(" -\r") != line.npos) last = line;
  }
  return last.empty() ? format("exit code {}", end.exit_code) : last;
}

std::vector<std::string> warnings_in(const ChildEnd& end) {
  std::istringstream lines(end.err.substr(0, end.err.find("warnings of this run:")));
  std::vector<std::string> warnings;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("warning: ")) warnings.push_back(line.substr(9));
  return warnings;
}

bool is_of_scheduler(std::string_view variable) {
  constexpr std::string_view schedulers[] = {"SLURM_", "PBS_", "FLUX_", "LSB_"};
  return std::any_of(std::begin(schedulers), std::end(schedulers), [&](auto begin) { return variable.starts_with(begin); });
}

/// How to start ranks on this machine only, also inside a job. Throws UserError if this process was started by mpirun or srun.
Allocation this_machine() {
  const Environment all = [](const char* name) { return std::getenv(name); };
  if (const std::string launcher = launcher_name(all); !launcher.empty())
    throw UserError(format(
        "--rehearse was started by {} (it starts ranks itself, on this machine); start it once, without a launcher", launcher));
  const Environment visible = [](const char* name) { return is_of_scheduler(name) ? nullptr : std::getenv(name); };
  return find_allocation(visible, MpiSession::library_version(), "");
}

/// Starts the stand-ins. Returns a line about what they did.
std::string run_stand_ins(const TrainOptions& job, const Origin& origin, StandIns stand_ins, const TransformerConfig& narrow,
                          const Allocation& allocation, const HeldSignals& signals, const std::string& program,
                          std::vector<std::string>& warnings) {
  const fs::path& folder = stand_ins.folder;
  fs::create_directories(folder / "model");
  write_text_file_durably(folder / "model" / "config.json", json_text(config_to_json(narrow), 2));
  const auto parameters = [](const TransformerConfig& config) {
    return static_cast<double>(Transformer(config, kernels::traits_of_cpu()).parameter_count());
  };
  TrainOptions options =
      stand_in_options(job, stand_ins, origin.config.lora, parameters(narrow) / parameters(without_adapters(origin.config)));
  std::vector<std::pair<std::string, std::optional<std::string>>> hidden;
  for (char** variable = environ; *variable; ++variable)
    if (const std::string_view text = *variable; is_of_scheduler(text))
      hidden.emplace_back(text.substr(0, text.find('=')), std::nullopt);
  double seconds = 0;
  const auto start = [&](const TrainOptions& run, const char* what) {
    std::vector<std::string> words = words_of(run, stand_ins.ranks);
    words.insert(words.begin(), program);
    print_to(stderr, "rehearsal: {} {} ...\n", plural(stand_ins.ranks, "stand-in"), what);
    const double limit_s = job.rehearsal.limit_s;
    if (stand_ins.ranks > 1) words = launch_words(allocation, {1, stand_ins.ranks}, limit_s + 1, words);
    ChildEnd end = run_child({.words = words, .environment = hidden, .limit_s = limit_s});
    seconds += end.seconds;
    if (signals.came()) throw RunError("stopped on request");
    if (end.timed_out)
      throw RunError(
          format("the stand-ins that {} did not end within {} (their last words: {}); if this machine is only slow, "
                 "raise --rehearse-limit",
                 what, format_duration(limit_s), error_in(end)));
    if (end.exit_code != exit_code::done) throw RunError(format("{}{}", from_stand_ins, error_in(end)));
    for (std::string& warning : warnings_in(end))
      if (std::find(warnings.begin(), warnings.end(), warning) == warnings.end()) warnings.push_back(std::move(warning));
  };
  if (options.lora.rank > 0) {
    TrainOptions base = options;
    base.finetune_from.clear();
    base.lora = {}, base.lora_layers = {}, base.base_type = {}, base.sharding.patterns = {};
    base.valid.clear(), base.valid_mask.clear(), base.data = stand_ins.data;
    base.save = {}, base.save.folder = folder / "base";
    base.validate_interval_updates = base.max_valid_steps = base.sample_interval_updates = 0, base.eval_on_start = false;
    base.schedule = {.learning_rate = 0, .total = 1};
    base.max_update = 1;
    base.ema_decay = 0, base.ema_start_update = 0, base.use_ema = false;
    base.log_file = "none", base.tensorboard.clear(), base.trace = {};
    start(base, "make a base model");
  }
  start(options, "train and save");
  std::string done = format("{} updates{}", first_updates, valid_name(options).empty() ? "" : ", a validation");
  if (!job.save.none) {
    options.max_update = all_updates;
    start(options, "resume");
    done += format(", a save, and {} more updates after a resumption", all_updates - first_updates);
  }
  return format("{}: {}", done, format_duration(seconds));
}

/// "width 64 (of 4096), heads 4 (of 32), ..."
std::string describe_cut(const TransformerConfig& whole, const TransformerConfig& narrow) {
  std::vector<std::string> parts;
  const auto note = [&](const char* what, std::size_t TransformerConfig::*field) {
    if (whole.*field != narrow.*field) parts.push_back(format("{} {} (of {})", what, narrow.*field, whole.*field));
  };
  note("width", &TransformerConfig::width), note("heads", &TransformerConfig::heads);
  note("key/value heads", &TransformerConfig::kv_heads), note("head size", &TransformerConfig::head_size);
  note("inner width", &TransformerConfig::ffn_width);
  return format("{}", fmt::join(parts, ", "));
}

/// The number of updates of the job, as far as it is known: `sequences` of a pass over the data, or 0.
std::uint64_t updates_of(const TrainOptions& job, std::uint64_t sequences) {
  const std::uint64_t per_update = job.total_batch_size;
  const std::uint64_t of_data =
      job.max_epoch == 0 || per_update == 0 || sequences == 0 ? 0 : (job.max_epoch * sequences + per_update - 1) / per_update;
  if (job.max_update == 0 || of_data == 0) return std::max<std::uint64_t>(job.max_update, of_data);
  return std::min<std::uint64_t>(job.max_update, of_data);
}

void print_planned(const TrainOptions& job, const PlannedJob& planned, const JobNeeds& needs, std::uint64_t free_bytes) {
  const auto add = [&](const char* what, const std::string& value) { print_text(stdout, format("  {:<24}{}\n", what, value)); };
  const PlanOptions& plan = job.sharding.plan;
  const std::size_t blocks = planned.fitted.recomputed_blocks;
  add("mesh", format("shard groups of {}, {} of them", plural(planned.mesh.shard, "rank"), planned.mesh.replicate));
  const auto ranks = static_cast<std::size_t>(planned.mesh.shard) * static_cast<std::size_t>(planned.mesh.replicate);
  const bool fits = job.total_batch_size == job.sharding.batch.B * plan.micro_batches * ranks;
  add("batch", format("{} of {} tokens per update: {} x {} x {}{}",
                      plural(job.sharding.batch.B * plan.micro_batches * ranks, "sequence"), job.sharding.batch.T,
                      job.sharding.batch.B, plural(plan.micro_batches, "micro-batch", "micro-batches"), plural(ranks, "rank"),
                      fits ? "" : ", for this plan only"));
  add("memory of a rank", bytes_text(planned.fitted.memory.total()) +
                              (planned.limit > 0 ? format(" of {}", bytes_text(planned.limit)) : "") +
                              (blocks > 0 ? format(", with {} recomputed", plural(blocks, "block")) : ""));
  add("sent per update", format("{} by a rank, {} out of a node", bytes_text(planned.traffic.rank.total()),
                                bytes_text(planned.traffic.out_of_node)));
  if (planned.step)
    add("predicted, not measured",
        format("{} per update, {} tokens/s", format_duration(planned.step->total), format_count(planned.tokens_per_second)));
  else
    add("time of an update", format("unknown; {}", planned.no_step));
  const double needed_s = needs.update_s.value_or(0) * static_cast<double>(needs.updates);
  add("updates", needs.updates == 0 ? "unknown, because the data end the run and could not be counted"
                                    : format("{}{}", needs.updates,
                                             needed_s > 0 ? format(", {} by the prediction, without saves and validations",
                                                                   format_duration(needed_s))
                                                          : ""));
  if (!job.rehearsal.time.empty()) {
    const double limit_s = slurm_seconds(job.rehearsal.time), left_s = limit_s - job.stop_before_s;
    add("time limit", format("{}{}", format_duration(limit_s),
                             needed_s == 0 ? "; how long the job takes is unknown"
                             : needed_s > left_s && job.stop_before_s > 0 && left_s > 0
                                 ? format("; about {} starts of the job", std::ceil(needed_s / left_s))
                                 : ""));
  }
  if (job.save.none)
    add("saves", "none (--no-save)");
  else
    add("a save", format("{} files, {}; {} of them at most at a time, {}; {} are free", ranks + 2, bytes_text(needs.save_bytes),
                         needs.kept, bytes_text(needs.kept * needs.save_bytes), bytes_text(free_bytes)));
}

}  // namespace

double slurm_seconds(const std::string& text) {
  const auto refuse = [&] {
    throw UserError(
        format("--time '{}' is not accepted (it is no time of Slurm); give MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM "
               "or D-HH:MM:SS",
               text));
  };
  std::vector<double> numbers;
  std::string marks;
  for (const char *at = text.data(), *const end = at + text.size();;) {
    std::uint32_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc()) refuse();
    numbers.push_back(number);
    if (next == end) break;
    marks += *next;
    at = next + 1;
  }
  struct Form {
    std::string_view marks;
    std::array<double, 4> units;
  };
  constexpr Form forms[] = {{"", {60}},
                            {":", {60, 1}},
                            {"::", {3600, 60, 1}},
                            {"-", {86400, 3600}},
                            {"-:", {86400, 3600, 60}},
                            {"-::", {86400, 3600, 60, 1}}};
  const auto form = std::find_if(std::begin(forms), std::end(forms), [&](const Form& one) { return one.marks == marks; });
  if (form == std::end(forms)) refuse();
  return std::inner_product(numbers.begin(), numbers.end(), form->units.begin(), 0.0);
}

TransformerConfig narrow_config(TransformerConfig config, std::size_t width) {
  const std::size_t vocab_size = config.vocab_size;
  config = without_adapters(std::move(config));
  config.vocab_size = vocab_size;
  width -= width % 2;  // heads have even sizes
  if (config.width <= width) return config;
  const TransformerConfig whole = config;
  const auto part = [&](std::size_t n) { return std::max<std::size_t>(1, n * width / whole.width); };
  config.width = width;
  config.ffn_width = part(whole.ffn_width);
  config.heads = std::min(whole.heads, std::max<std::size_t>(1, width / head_size_of_stand_ins));
  while (width % config.heads != 0 || (width / config.heads) % 2 != 0) --config.heads;
  const std::size_t group = whole.heads / whole.kv_heads;  // query heads of a key/value head
  config.kv_heads = config.heads % group == 0 ? config.heads / group : 1;
  config.head_size = width / config.heads;
  for (Rope* rope : {&config.rope, config.window_rope ? &*config.window_rope : nullptr}) {
    if (!rope) continue;
    if (rotated_elements(config, *rope) % 2 != 0 || rotated_elements(config, *rope) < 4) rope->rotated = 0.5;
    const std::size_t pairs = rotated_elements(config, *rope) / 2;
    for (auto* factors : {&rope->short_factors, &rope->long_factors})
      if (factors->size() > pairs) factors->resize(pairs);
  }
  config.validate();
  return config;
}

int shard_group_of(int ranks, MeshShape job) {
  int group = std::min(job.shard, job.replicate > 1 ? std::max(1, ranks / 2) : ranks);
  while (ranks % group != 0) --group;
  return group;
}

TrainOptions stand_in_options(TrainOptions o, const StandIns& stand_ins, const Lora& adapters, double shrunk) {
  const bool on_gpu = !is_host(kind_of_job(o));
  const fs::path& folder = stand_ins.folder;
  o.rehearsal = {};
  // The model: new weights of the narrow configuration, or adapters over such a model.
  o.arch.clear(), o.model = folder / "model", o.sizes = {}, o.init = InitFrom::random;
  o.add_tokens.clear(), o.add_special_tokens.clear(), o.pad_vocab_to = 0, o.new_token_init = {};
  o.tokenizer = stand_ins.tokenizer, o.data = stand_ins.data, o.valid = stand_ins.valid;
  o.adapter.clear(), o.finetune_from.clear(), o.ignore_missing.clear();
  if (adapters.rank > 0) {
    o.finetune_from = folder / "base";
    o.lora = adapters;
    o.lora.tokens.clear(), o.lora.head_tokens.clear(), o.lora.base_vocab = o.lora.vocab = 0;
    o.lora_layers.clear();
    for (const std::size_t layer : adapters.layers) o.lora_layers.push_back(std::to_string(layer));
  }
  // The batch and the shards.
  o.sharding.batch = {.B = 1, .T = stand_ins.tokens_per_sample};
  o.sharding.plan.micro_batches = std::min<std::size_t>(2, o.sharding.plan.micro_batches);
  o.total_batch_size = o.sharding.plan.micro_batches * static_cast<std::size_t>(stand_ins.ranks);
  if (find_placement(o.sharding.strategy).axis == ShardAxis::group) o.sharding.shard_group_size = stand_ins.shard_group;
  if (o.execution.pad_to_multiple_of > o.sharding.batch.T) o.execution.pad_to_multiple_of = o.sharding.batch.T;
  if (o.sharding.wrap.kind == WrapPolicy::Kind::size)
    o.sharding.wrap.min_num_params = static_cast<std::size_t>(static_cast<double>(o.sharding.wrap.min_num_params) * shrunk);
  // The schedule of updates, saves and validations.
  Schedule& s = o.schedule;
  s.total = all_updates, s.warmup = std::min<std::uint64_t>(s.warmup, 2),
  s.decay_updates = std::min<std::uint64_t>(s.decay_updates, 2);
  o.warmup_ratio = o.min_lr_ratio = 0;
  o.max_update = first_updates, o.max_epoch = 0, o.decay_from = 0, o.early_stopping = 0;
  SaveOptions& save = o.save;
  const bool saves = save.interval_updates > 0 || save.interval_epochs > 0 || save.interval_s > 0;
  save.folder = folder / "checkpoints", save.interval_updates = saves ? 2 : 0, save.interval_epochs = 0, save.interval_s = 0;
  save.keep_every = std::min<std::size_t>(save.keep_every, 2);
  o.restore = "latest", o.reset_optimizer = o.reset_dataloader = false, o.stop_before_s = 0;
  o.validate_interval_updates = o.validates_often() ? 2 : 0, o.validate_interval_epochs = 0;
  if (!stand_ins.valid.empty() || valid_data_of(stand_ins.data)) o.max_valid_steps = 1;
  o.sample_interval_updates = std::min<std::size_t>(o.sample_interval_updates, 2);
  // This machine.
  o.device = DeviceChoice::cpu, o.threads = 0;
  if (on_gpu) {
    o.comm.kind = "auto", o.comm.sum_order = SumOrder::canonical;
    o.attention_backend = AttentionBackend::own, o.bias_gelu_fusion = false, o.execution.gemm_algorithms.clear();
    o.offload_activations = false, o.offloaded_layers = 0, o.memory_limit = 0;
    if (o.recompute_num_layers == "auto") o.recompute_num_layers = "0";
  }
  if (!o.execution.nvme_path.empty()) o.execution.nvme_path = folder;
  o.log_interval = 1, o.log_format = LogFormat::simple;
  if (!o.log_file.empty() || o.save.none) o.log_file = folder / "metrics.jsonl";
  if (!o.tensorboard.empty()) o.tensorboard = folder / "tensorboard";
  if (!o.trace.file.empty()) o.trace.file = folder / "trace.json";
  return o;
}

void count_saves(const SaveOptions& save, JobNeeds& needs) {
  if (save.none) return;
  const std::uint64_t interval = save.interval_updates, updates = needs.updates;
  needs.saves = interval > 0 && updates > 0 ? (updates + interval - 1) / interval : 1;
  // A new step is written before the oldest one is removed.
  const std::uint64_t others = (save.keep_every > 0 ? updates / save.keep_every : 0) + (save.keep_best.empty() ? 0 : 1);
  needs.kept = save.keep_last == 0 ? needs.saves : std::min(needs.saves, save.keep_last + 1 + others);
}

std::vector<std::string> judge_time(const TrainOptions& job, const JobNeeds& needs) {
  std::vector<std::string> problems;
  const double limit_s = job.rehearsal.time.empty() ? 0 : slurm_seconds(job.rehearsal.time), before_s = job.stop_before_s;
  if (limit_s > 0 && before_s >= limit_s)
    problems.push_back(
        format("--stop-before {} leaves no time to train (the job has {}); give the job more time, or "
               "--stop-before less",
               format_duration(before_s), format_duration(limit_s)));
  if (needs.update_s && before_s > 0 && before_s <= *needs.update_s)
    problems.push_back(
        format("--stop-before {} is too short (an update takes {} by the prediction, and a save follows); raise "
               "it",
               format_duration(before_s), format_duration(*needs.update_s)));
  const double needed_s = needs.update_s.value_or(0) * static_cast<double>(needs.updates);
  if (limit_s > 0 && before_s == 0 && needed_s > limit_s)
    problems.push_back(
        format("the job's time is too short (its {} updates take {} by the prediction, and it has {}); give "
               "--stop-before TIME, so that it saves before its end and can be requeued, or more time",
               needs.updates, format_duration(needed_s), format_duration(limit_s)));
  return problems;
}

std::vector<std::string> judge_space(const TrainOptions& job, const JobNeeds& needs, std::uint64_t free_bytes,
                                     const std::string& folder) {
  const std::uint64_t needed = needs.kept * needs.save_bytes;
  if (needed <= free_bytes) return {};
  return {format("{} has too little space (the saves need {}: {} of {}; {} are free); free some, choose another --save-dir{}",
                 folder, bytes_text(needed), plural(needs.kept, "step"), bytes_text(needs.save_bytes), bytes_text(free_bytes),
                 job.save.keep_last == 0 && needs.saves > 2 ? ", or give --keep-last" : "")};
}

int rehearse(const TrainOptions& job, std::vector<std::string> found, const std::string& program) {
  const RehearsalOptions& rehearsal = job.rehearsal;
  if (!rehearsal.time.empty()) slurm_seconds(rehearsal.time);
  if (rehearsal.ranks_per_node == 0)
    throw UserError("--rehearse needs the shape of the job; give --nodes N and --ranks-per-node N");
  if (job.dry_run) throw UserError("--rehearse and --dry-run are both given (each is a way to try a job); leave one out");
  const int ranks = rehearsal.nodes * rehearsal.ranks_per_node;
  const Allocation allocation = this_machine();
  Problems problems(std::move(found));
  bool runs = look_at_data(job, problems);
  std::optional<Origin> origin;
  std::optional<PlannedJob> planned;
  runs &= problems.passes([&] { origin = find_start(job); });
  if (origin) {
    for (const std::string& warning : origin->warnings) print_warning(with_option_names(warning));
    if (runs) runs = problems.passes([&] { find_texts(job, origin->tokenizer, origin->config.vocab_size); });
    runs &= problems.passes([&] { planned = plan_job(job, origin->config); });
  }
  if (planned && !planned->fitted.fits)
    problems.add(
        format("a rank needs {}, and has {} (the plan); use more ranks, a smaller --batch-size, "
               "--checkpoint-activations or --sharding-strategy full",
               bytes_text(planned->fitted.memory.total()), bytes_text(planned->limit)));
  const fs::path near = existing_parent(job.save.folder);
  const bool writes = job.save.none || problems.passes([&] {
    const fs::path& folder = job.save.folder;
    if (kind_of(folder) == PathKind::missing) return;
    if (::access(folder.c_str(), W_OK | X_OK) != 0)
      throw UserError(format("{} cannot be written to; change its permissions, or choose another --save-dir", folder.string()));
  });
  const HeldSignals signals;  // destroyed after the folder, so that a signal that came ends the process then
  std::optional<ScratchFolder> scratch;
  if (writes && !job.save.none) problems.passes([&] { scratch.emplace(near, "fsdp-rehearsal"); });
  if (!scratch) scratch.emplace(fs::temp_directory_path(), "fsdp-rehearsal");
  std::uint64_t sequences = 0;
  std::string done;
  std::vector<std::string> cut, warnings;
  TransformerConfig narrow;
  StandIns stand_ins;
  stand_ins.ranks = std::min(ranks, most_stand_ins), stand_ins.folder = scratch->path();
  if (const std::string& launcher = allocation.start.front(); !ask_program({launcher, "--version"}, 20)) {
    stand_ins.ranks = 1;
    cut.push_back(format("1 rank, because {} cannot be started here", launcher));
  }
  if (runs && planned) {
    runs = problems.passes([&] {
      narrow = narrow_config(origin->config, rehearsal.width);
      stand_ins.tokenizer = origin->tokenizer;
      if (find_placement(job.sharding.strategy).axis == ShardAxis::group)
        stand_ins.shard_group = shard_group_of(stand_ins.ranks, planned->mesh);
      if (stand_ins.shard_group > 0 && stand_ins.shard_group != planned->mesh.shard)
        cut.push_back(format("shard groups of {} (of {})", stand_ins.shard_group, planned->mesh.shard));
      std::size_t& T = stand_ins.tokens_per_sample = job.sharding.batch.T;
      const Transformer model(narrow, kernels::traits_of_cpu());
      const auto sequences_in_all =
          static_cast<double>(all_updates * std::min<std::size_t>(2, job.sharding.plan.micro_batches)) * stand_ins.ranks;
      while (T > shortest_sequence && sequences_in_all * static_cast<double>(T) * model.flops_per_token(T) > most_flops) T /= 2;
      if (T != job.sharding.batch.T) cut.push_back(format("sequences of {} tokens (of {})", T, job.sharding.batch.T));
      if (job.sharding.batch.B > 1) cut.push_back(format("micro-batches of 1 sequence (of {})", job.sharding.batch.B));
      stand_ins.data = data_for_stand_ins(job.data, Split::train, job, stand_ins.folder / "train", cut);
      stand_ins.valid = data_for_stand_ins(valid_name(job), Split::valid, job, stand_ins.folder / "valid", cut);
      done = run_stand_ins(job, *origin, stand_ins, narrow, allocation, signals, program, warnings);
      if (stand_ins.data == job.data) {  // else its texts are not tokenized, and cannot be counted
        const fs::path tokens = stand_ins.folder / "checkpoints" / "tokens";
        sequences = open_mixture(job.data, data_cut(job), job.mask, tokens).sequences();
      }
    });
  }
  JobNeeds needs;
  std::uint64_t free_bytes = 0;
  needs.updates = updates_of(job, sequences);
  if (planned) {
    if (planned->step) needs.update_s = planned->step->total;
    needs.save_bytes = planned->save_bytes;
    count_saves(job.save, needs);
    problems.passes([&] { free_bytes = free_bytes_of(near); });
    for (const std::string& text : judge_space(job, needs, free_bytes, near.string())) problems.add(text);
  }
  for (const std::string& text : judge_time(job, needs)) problems.add(text);
  print_to(stdout, "the job, by its plan ({}):\n",
           format("{} x {}", plural(rehearsal.nodes, "node"), plural(rehearsal.ranks_per_node, "rank")));
  if (planned)
    print_planned(job, *planned, needs, free_bytes);
  else
    print_text(stdout, "  not planned, because of what would fail\n");
  if (done.empty())
    print_text(stdout, "the stand-ins did not run to their end\n");
  else
    print_text(stdout, wrapped(format("the stand-ins, {} on this machine: {}", plural(stand_ins.ranks, "rank"), done)) + "\n");
  if (planned && runs) {
    std::string what = describe_cut(without_adapters(origin->config), narrow);
    for (const std::string& text : cut) what += (what.empty() ? "" : ", ") + text;
    if (!what.empty()) print_text(stdout, wrapped(format("  cut for them: {}", what)) + "\n");
  }
  for (const std::string& warning : warnings) print_text(stdout, wrapped(format("  they warned: {}", warning)) + "\n");
  if (problems.found().empty()) {
    print_text(stdout, "nothing would fail, as far as this machine can see\n");
    return exit_code::done;
  }
  print_text(stdout, "would fail:\n");
  for (const std::string& text : problems.found()) print_text(stdout, wrapped(format("  {}", text)) + "\n");
  return exit_code::failed;
}

}  // namespace fsdp
