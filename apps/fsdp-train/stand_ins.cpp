#include "fsdp-train/stand_ins.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "comm/backend.hpp"
#include "comm/launcher.hpp"
#include "comm/mpi_session.hpp"
#include "data/open_data.hpp"
#include "data/text_source.hpp"
#include "files/json.hpp"
#include "files/output_file.hpp"
#include "nn/rope.hpp"
#include "nn/transformer.hpp"
#include "plan/placement.hpp"
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
               name, format_bytes(static_cast<double>(size))));
  cut.push_back(format("only the first {} of each of the texts {}", format_bytes(double{most_text}), name));
  return cut_texts(texts, job, folder);
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

/// "width 64 (of 4096), heads 4 (of 32), ..."
void describe_cut(const TransformerConfig& whole, const TransformerConfig& narrow, std::vector<std::string>& parts) {
  const auto note = [&](const char* what, std::size_t TransformerConfig::*field) {
    if (whole.*field != narrow.*field) parts.push_back(format("{} {} (of {})", what, narrow.*field, whole.*field));
  };
  note("width", &TransformerConfig::width), note("heads", &TransformerConfig::heads);
  note("key/value heads", &TransformerConfig::kv_heads), note("head size", &TransformerConfig::head_size);
  note("inner width", &TransformerConfig::ffn_width);
}

}  // namespace

DeviceKind kind_of_job(const TrainOptions& job) {
  const bool needs_gpu = (job.comm.kind != "auto" && find_backend(job.comm.kind).device_backend) || job.bias_gelu_fusion ||
                         job.comm.sum_order == SumOrder::library || !job.execution.gemm_algorithms.empty() ||
                         job.attention_backend == AttentionBackend::cudnn;
  const bool on_gpu = job.rehearsal.gpu || (needs_gpu && job.device == DeviceChoice::automatic);
  return on_gpu ? DeviceKind::cuda : kind_to_plan_for(job.device);
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
  const bool saves = save.interval_updates > 0 || save.interval_epochs > 0 || save.interval_s > 0 || save.interval_auto;
  save.folder = folder / "checkpoints", save.interval_updates = saves ? 2 : 0, save.interval_epochs = 0, save.interval_s = 0;
  save.interval_auto = false, save.mtbf_s = 0, o.stripe.clear();
  if (save.files > stand_ins.ranks) save.files = stand_ins.ranks, save.files_per_checkpoint = format("{}", save.files);
  save.keep_every = std::min<std::size_t>(save.keep_every, 2);
  o.restore = "latest", o.reset_optimizer = o.reset_dataloader = false, o.stop_before_s = 0;
  o.validate_interval_updates = o.validates_often() ? 2 : 0, o.validate_interval_epochs = 0;
  if (!stand_ins.valid.empty() || valid_data_of(stand_ins.data)) o.max_valid_steps = 1;
  o.sample_interval_updates = std::min<std::size_t>(o.sample_interval_updates, 2);
  // This machine.
  o.device = DeviceChoice::cpu, o.threads = 0, o.measured.clear();
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

Allocation this_machine() {
  const Environment all = [](const char* name) { return std::getenv(name); };
  if (const std::string launcher = launcher_name(all); !launcher.empty())
    throw UserError(format(
        "--rehearse was started by {} (it starts ranks itself, on this machine); start it once, without a launcher", launcher));
  const Environment visible = [](const char* name) { return is_of_scheduler(name) ? nullptr : std::getenv(name); };
  return find_allocation(visible, MpiSession::library_version(), {});
}

void run_stand_ins(const TrainOptions& job, const Origin& origin, MeshShape mesh, const fs::path& folder,
                   const Allocation& machine, const std::string& program, StandInResult& result) {
  std::vector<std::string>& cut = result.cut;
  const TransformerConfig narrow = narrow_config(origin.config, job.rehearsal.width);
  describe_cut(without_adapters(origin.config), narrow, cut);
  StandIns stand_ins;
  stand_ins.ranks = std::min(mesh.shard * mesh.replicate, most_stand_ins);
  if (const std::string& launcher = machine.start.front(); !ask_program({launcher, "--version"}, 20)) {
    stand_ins.ranks = 1;
    cut.push_back(format("1 rank, because {} cannot be started here", launcher));
  }
  stand_ins.folder = folder, stand_ins.tokenizer = origin.tokenizer;
  stand_ins.shard_group = shard_group_of(stand_ins.ranks, mesh);
  if (find_placement(job.sharding.strategy).axis == ShardAxis::group && stand_ins.shard_group != mesh.shard)
    cut.push_back(format("shard groups of {} (of {})", stand_ins.shard_group, mesh.shard));
  std::size_t& T = stand_ins.tokens_per_sample = job.sharding.batch.T;
  const Transformer model(narrow, kernels::traits_of_cpu());
  const auto sequences =
      static_cast<double>(all_updates * std::min<std::size_t>(2, job.sharding.plan.micro_batches)) * stand_ins.ranks;
  while (T > shortest_sequence && sequences * static_cast<double>(T) * model.flops_per_token(T) > most_flops) T /= 2;
  if (T != job.sharding.batch.T) cut.push_back(format("sequences of {} tokens (of {})", T, job.sharding.batch.T));
  if (job.sharding.batch.B > 1) cut.push_back(format("micro-batches of 1 sequence (of {})", job.sharding.batch.B));
  stand_ins.data = data_for_stand_ins(job.data, Split::train, job, folder / "train", cut);
  stand_ins.valid = data_for_stand_ins(valid_name(job), Split::valid, job, folder / "valid", cut);
  fs::create_directories(folder / "model");
  write_text_file_durably(folder / "model" / "config.json", json_text(config_to_json(narrow), 2));
  const Transformer whole(without_adapters(origin.config), kernels::traits_of_cpu());
  TrainOptions options =
      stand_in_options(job, stand_ins, origin.config.lora,
                       static_cast<double>(model.parameter_count()) / static_cast<double>(whole.parameter_count()));
  Variables hidden;
  for (char** variable = environ; *variable; ++variable)
    if (const std::string_view text = *variable; is_of_scheduler(text))
      hidden.emplace_back(text.substr(0, text.find('=')), std::nullopt);
  double seconds = 0;
  const auto start = [&](const TrainOptions& run, const char* what) {
    std::vector<std::string> words = words_of(run, stand_ins.ranks);
    words.insert(words.begin(), program);
    print_to(stderr, "rehearsal: {} {} ...\n", plural(stand_ins.ranks, "stand-in"), what);
    const double limit_s = job.rehearsal.limit_s;
    const ChildEnd end = stand_ins.ranks > 1 ? run_ranks(machine, {1, stand_ins.ranks}, limit_s, words, hidden)
                                             : run_child({.words = words, .environment = hidden, .limit_s = limit_s});
    seconds += end.seconds;
    if (stop_is_requested()) throw RunError("stopped on request");
    if (has_hung(end, limit_s))
      throw RunError(
          format("the stand-ins that {} did not end within {} (their last words: {}); if this machine is only slow, "
                 "raise --rehearse-limit",
                 what, format_duration(limit_s), error_in(end, "fsdp-train")));
    if (end.exit_code != exit_code::done) throw RunError(format("{}{}", from_stand_ins, error_in(end, "fsdp-train")));
    for (std::string& warning : warnings_in(end))
      if (std::find(result.warnings.begin(), result.warnings.end(), warning) == result.warnings.end())
        result.warnings.push_back(std::move(warning));
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
  result.done = format("{} on this machine: {}: {}", plural(stand_ins.ranks, "rank"), done, format_duration(seconds));
  if (stand_ins.data == job.data)  // otherwise its texts are not tokenized, and cannot be counted
    result.sequences = open_mixture(job.data, data_cut(job), job.mask, options.save.folder / "tokens").sequences();
}

}  // namespace fsdp
