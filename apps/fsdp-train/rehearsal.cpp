#include "fsdp-train/rehearsal.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "base/program.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/save_folder.hpp"
#include "comm/threads/threads.hpp"
#include "data/open_data.hpp"
#include "device/file_storage.hpp"
#include "engine/memory.hpp"
#include "files/input_file.hpp"
#include "files/scratch_folder.hpp"
#include "fsdp-train/stand_ins.hpp"
#include "machine/measured_rates.hpp"
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

std::string bytes_text(std::uint64_t n) { return format_bytes(static_cast<double>(n)); }

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

/// stop_signals() wait while this object exists, and take effect after it. Children have their own mask.
class HeldSignals {
 public:
  HeldSignals() {
    const sigset_t held = stop_signals();
    ::sigprocmask(SIG_BLOCK, &held, &before_);
  }
  HeldSignals(const HeldSignals&) = delete;
  ~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
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

PlannedJob plan_job(const TrainOptions& job, const TransformerConfig& config) {
  const RehearsalOptions& rehearsal = job.rehearsal;
  const GpuFigures* const gpu = rehearsal.gpu;
  const DeviceKind kind = kind_of_job(job);
  const Cluster cluster = {rehearsal.nodes, rehearsal.ranks_per_node, find_backend(job.comm.kind).between, job.comm.sum_order};
  if (gpu && job.device == DeviceChoice::cpu)
    throw UserError("--gpu and --device cpu contradict each other (one plans for GPUs, the other for CPUs); leave out one");
  if (gpu && !gpu->runs_fsdp())
    throw UserError(
        format("fsdp does not run on --gpu {} (it needs compute capability 8.0); give the GPU of the job", gpu->name));
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
  planned.save_bytes = step_bytes(sharded.layout, plan.average_weights);
  const Network network = !rehearsal.network.empty() ? read_network(rehearsal.network) : gpu ? network_of(*gpu) : Network();
  const bool on_cpus = !gpu && is_host(kind) && !job.measured.empty();
  if (!gpu && !on_cpus)
    planned.no_step = "give --gpu NAME for a prediction, or --measured FILE on CPUs";
  else if (cluster.nodes > 1 && (on_cpus || network.ports == 0))
    planned.no_step = on_cpus ? "--measured predicts CPUs of one node"
                              : format("{} has no figure for a network between nodes; give --network", gpu->name);
  else if (plan.places.on_disk())
    planned.no_step = "fsdp-plan predicts state in a file with --nvme-bandwidth";
  else {
    const UpdateSimulation simulation(model, options.sharding, planned.mesh, cluster);
    const Rates rates = measured_rates(job.measured, measured_use(job, cluster, gpu),
                                       gpu ? rates_of(*gpu, model, options.sharding.types.parameter, network) : Rates());
    planned.step = simulation.predict(rates);
    planned.tokens_per_second = simulation.tokens_per_second(*planned.step);
  }
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

/// The number of updates of the job, as far as it is known: `sequences` of a pass over the data, or 0.
std::uint64_t updates_of(const TrainOptions& job, std::uint64_t sequences) {
  const std::uint64_t per_update = job.total_batch_size;
  const std::uint64_t of_data =
      job.max_epoch == 0 || per_update == 0 || sequences == 0 ? 0 : (job.max_epoch * sequences + per_update - 1) / per_update;
  if (job.max_update == 0 || of_data == 0) return std::max<std::uint64_t>(job.max_update, of_data);
  return std::min<std::uint64_t>(job.max_update, of_data);
}

void print_planned(const TrainOptions& job, const PlannedJob& planned, const JobNeeds& needs,
                   std::optional<std::uint64_t> free_bytes) {
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
    add("a save",
        format("{} files, {}; {} of them at most at a time, {}; {} are free", needs.saves.step_files - 1,
               bytes_text(needs.saves.step_bytes), needs.saves.steps, bytes_text(needs.saves.steps * needs.saves.step_bytes),
               free_bytes ? bytes_text(*free_bytes) : std::string("an unknown number of bytes")));
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

int rehearse(const TrainOptions& job, std::vector<std::string> found, const std::string& program) {
  const RehearsalOptions& rehearsal = job.rehearsal;
  if (!rehearsal.time.empty()) slurm_seconds(rehearsal.time);
  if (rehearsal.ranks_per_node == 0)
    throw UserError("--rehearse needs the shape of the job; give --nodes N and --ranks-per-node N");
  if (job.dry_run) throw UserError("--rehearse and --dry-run are both given (each is a way to try a job); leave one out");
  const Allocation machine = this_machine();
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
  if (planned && planned->limit > 0 && planned->fitted.memory.total() > planned->limit)
    problems.add(
        format("a rank needs {}, and has {} (the plan); use more ranks, a smaller --batch-size, "
               "--checkpoint-activations or --sharding-strategy full",
               bytes_text(planned->fitted.memory.total()), bytes_text(planned->limit)));
  const fs::path near = kind_of(job.save.folder) == PathKind::missing ? existing_parent(job.save.folder) : job.save.folder;
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
  StandInResult result;
  if (runs && planned)
    problems.passes([&] { run_stand_ins(job, *origin, planned->mesh, scratch->path(), machine, program, result); });
  JobNeeds needs;
  std::optional<std::uint64_t> free_bytes;
  needs.updates = updates_of(job, result.sequences);
  if (planned) {
    if (planned->step) needs.update_s = planned->step->total;
    const auto ranks = static_cast<int>(rehearsal.nodes * rehearsal.ranks_per_node);
    const int files = job.save.files_per_checkpoint == "node" ? rehearsal.nodes : job.save.files;
    needs.saves = {planned->save_bytes, files_of_step(files, ranks),
                   steps_to_add(job.save, steps_in(job.save.folder), origin->update(), needs.updates), other_files(ranks)};
    for (const auto& [limit, room] : rooms_of(near)) {
      if (room.bytes) free_bytes = free_bytes ? std::min(*free_bytes, *room.bytes) : room.bytes;
      problems.passes([&] {
        if (job.save.none) return;
        if (const std::string shortage = judge_room(job.save.folder, needs.saves, room, limit); !shortage.empty())
          result.warnings.push_back(shortage);
      });
    }
  }
  for (const std::string& text : judge_time(job, needs)) problems.add(text);
  print_to(stdout, "the job, by its plan ({}):\n",
           format("{} x {}", plural(rehearsal.nodes, "node"), plural(rehearsal.ranks_per_node, "rank")));
  if (planned)
    print_planned(job, *planned, needs, free_bytes);
  else
    print_text(stdout, "  not planned, because of what would fail\n");
  const auto say = [](const std::string& line) { print_text(stdout, wrapped(line) + "\n"); };
  say(result.done.empty() ? "the stand-ins did not run to their end" : "the stand-ins, " + result.done);
  if (!result.cut.empty()) say(format("  cut for them: {}", fmt::join(result.cut, ", ")));
  for (const std::string& warning : result.warnings) say("  a warning: " + warning);
  if (problems.found().empty()) {
    print_text(stdout, "nothing would fail, as far as this machine can see\n");
    return exit_code::done;
  }
  print_text(stdout, "would fail:\n");
  for (const std::string& text : problems.found()) say("  " + text);
  return exit_code::failed;
}

}  // namespace fsdp
