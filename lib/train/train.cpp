#include "train/train.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/format.hpp"
#include "base/program.hpp"
#include "base/timer.hpp"
#include "base/version.hpp"
#include "checkpoint/checkpoint.hpp"
#include "data/batch.hpp"
#include "fsdp/sharded_model.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "train/machine.hpp"
#include "train/metrics.hpp"
#include "train/program.hpp"
#include "train/signals.hpp"

namespace fsdp {

namespace {

/// Where the weights come from: a checkpoint to continue, a pretrained model, or nothing but the seed.
struct Origin {
  TransformerConfig config;
  std::unique_ptr<CheckpointReader> checkpoint;
  std::unique_ptr<TensorSource> pretrained;
  std::vector<std::string> warnings;
};

void require_same_model(const TransformerConfig& wanted, const CheckpointReader& checkpoint) {
  const nlohmann::json a = config_to_json(wanted), b = config_to_json(checkpoint.header().config);
  std::string differences;
  for (const auto& [key, value] : a.items())
    if (!b.contains(key) || b[key] != value)
      differences += format("{}{}: {} asked for, {} there", differences.empty() ? "" : "; ", key, value.dump(),
                            b.contains(key) ? b[key].dump() : "nothing");
  if (!(wanted == checkpoint.header().config))
    throw UserError(format(
        "{} holds another model ({}); choose another --save-dir, ask for the same model, or start anew with --restore none",
        checkpoint.description(), differences));
}

/// Reads files only; may differ by rank until agreed upon.
Origin find_origin(const TrainOptions& options) {
  Origin origin;
  if (options.restore == "latest") {
    if (const auto folder = latest_checkpoint(options.save_dir, &origin.warnings))
      origin.checkpoint = CheckpointReader::open(*folder);
  } else if (options.restore != "none") {
    const auto folder = latest_checkpoint(options.restore, &origin.warnings);
    origin.checkpoint = CheckpointReader::open(folder.value_or(options.restore));
  }
  const bool named = !options.arch.empty() || !options.model.empty();
  if (!named && !origin.checkpoint)
    throw UserError(format("there is nothing to train (no complete checkpoint in {}); name a model with --arch or --model",
                           options.save_dir.string()));
  if (!options.arch.empty()) {
    origin.config = with_overrides(arch_config(options.arch), options);
    // As in fairseq: learned positions are as many as can be trained.
    if (origin.config.family == Family::gpt2)
      origin.config.max_positions = std::min(origin.config.max_positions, options.tokens_per_sample);
  }
  if (!options.model.empty()) origin.config = with_overrides(read_config(options.model), options);
  if (!named) origin.config = origin.checkpoint->header().config;
  if (origin.checkpoint)
    require_same_model(origin.config, *origin.checkpoint);
  else if (options.init == InitFrom::pretrained)
    origin.pretrained = open_hugging_face(options.model);
  // The run would come to a step that is there already, and its work since the save before would be lost.
  const std::uint64_t start = origin.checkpoint ? origin.checkpoint->header().progress.update : 0;
  if (const auto newest = latest_checkpoint(options.save_dir))
    if (const std::uint64_t there = CheckpointReader::open(*newest)->header().progress.update; there > start)
      throw UserError(format(
          "{} holds later steps than the run would start from ({} against {}), and they are not overwritten; choose another "
          "--save-dir or move them away",
          options.save_dir.string(), there, start));
  return origin;
}

/// A shared file system may show one rank a checkpoint that another one does not see yet. Collective.
void require_same_origin(const Origin& origin, Communicator& world, Stream& stream) {
  std::vector<std::int64_t> updates(static_cast<std::size_t>(world.size()));
  updates[static_cast<std::size_t>(world.rank())] =
      origin.checkpoint ? static_cast<std::int64_t>(origin.checkpoint->header().progress.update) : -1;
  world.all_reduce(stream, updates.data(), updates.size());
  if (std::any_of(updates.begin(), updates.end(), [&](std::int64_t u) { return u != updates.front(); }))
    throw CollectiveError(
        "the ranks see different latest checkpoints (the file system is not in step, or another run writes there); start again",
        0, true, exit_code::failed);
}

ShardingOptions sharding_options(const TrainOptions& options) {
  return {.strategy = options.sharding_strategy,
          .wrap = {options.wrap_layers},
          .batch = {options.batch_size, options.tokens_per_sample},
          .plan = {.training = true,
                   .micro_batches = options.update_freq,
                   .checkpoint_activations = options.checkpoint_activations},
          .adamw = {options.adam_betas[0], options.adam_betas[1], options.adam_eps, options.weight_decay}};
}

/// Brings in oneDNN's code, so that it does not count as memory of the run, and returns what the process has used so far.
std::size_t start_up(Stream& stream) {
  std::array<float, 3 * 64> x{};
  kernels::gemm(stream, kernels::Trans::no, kernels::Trans::no, 8, 8, 8, &x[0], 8, &x[64], 8, &x[128], 8,
                kernels::Write::overwrite);
  return process_peak_bytes();
}

/// Everything that a run holds. Made before the loop; the loop only calls it.
class Run {
 public:
  Run(const TrainOptions& options, Communicator& world)
      : options_(options),
        world_(world),
        device_(make_cpu_device()),
        stream_(device_->make_stream()),
        start_bytes_(start_up(*stream_)) {
    const CpuShare share = share_of_rank(*world.split_by_node(), *stream_, options.threads);
    threads_ = share.threads;
    kernels::set_threads(threads_);
    double cores = share.cores;
    world.all_reduce(*stream_, &cores, 1);
    if (const auto per_core = noted_peak_per_core()) peak_flops_ = *per_core * cores;
    agree(world, [&] {
      metrics_.emplace(options.dry_run ? std::filesystem::path() : options.log_file, options.log_interval, world.rank() == 0);
    });
    agree(world, [&] { origin_ = find_origin(options); });
    require_same_origin(origin_, world, *stream_);
    agree(world, [&] { check_sharding(origin_.config, sharding_options(options)); });
    sharded_.emplace(origin_.config, sharding_options(options), world);
    cut_ = {options.batch_size, options.tokens_per_sample, options.update_freq, world.rank(), world.size()};
    for (const std::string& warning : origin_.warnings) metrics_->say("warning: " + warning);
  }

  void announce() {
    const Plan& plan = sharded_->plan();
    const Transformer& model = sharded_->model();
    metrics_->say(format("fsdp {}: {}, {} thread{} per rank, {}, {}", version_string(), device_->description(), threads_,
                         threads_ == 1 ? "" : "s", kernels::gemm_description(), world_.description()));
    metrics_->say(
        format("model: {} parameters, {} blocks, width {}; strategy {} over {} rank{}; {} sequences of {} tokens per update",
               format_count(static_cast<double>(model.parameter_count())), model.blocks(), model.config().width,
               sharded_->placement().name, world_.size(), world_.size() == 1 ? "" : "s", cut_.sequences_per_update(), cut_.T));
    metrics_->say("memory plan per rank:\n" + describe_memory(plan) + overheads());
  }

  /// What --dry-run prints, to stdout.
  void print_plan() {
    if (world_.rank() != 0) return;
    const Layout& layout = sharded_->layout();
    std::printf("units:\n");
    for (const Unit& unit : layout.units())
      std::printf("  %-12s %zu tensors, %zu elements, %zu with padding\n", unit.name.c_str(), unit.parameters.size(),
                  unit.numel, unit.padded_numel);
    std::printf("memory plan per rank:\n%s%soperations of one update:\n%s", describe_memory(sharded_->plan()).c_str(),
                overheads().c_str(), describe_operations(sharded_->plan(), sharded_->plan().update, layout).c_str());
  }

  /// Memory, data, weights: after it the loop can run.
  void prepare() {
    const std::size_t vocabulary = sharded_->model().config().vocab_size;
    // The order of the data goes on as it began.
    const std::uint64_t seed = origin_.checkpoint ? origin_.checkpoint->header().progress.seed : options_.seed;
    agree(world_, [&] {
      const auto rank = static_cast<std::size_t>(world_.rank()), ranks = static_cast<std::size_t>(world_.size());
      train_file_.emplace(options_.data);
      train_file_->check_vocabulary(vocabulary, rank, ranks);
      train_batches_.emplace(*train_file_, cut_, vocabulary, options_.shuffle ? std::optional(seed) : std::nullopt);
      if (options_.valid.empty()) return;
      valid_file_.emplace(options_.valid);
      valid_file_->check_vocabulary(vocabulary, rank, ranks);
      valid_batches_.emplace(*valid_file_, cut_, vocabulary);
    });
    agree(world_, [&] { sharded_->allocate(*device_); });
    progress_.seed = options_.seed;
    const Timer timer;
    agree(world_, [&] { fill_weights(); });
    if (origin_.checkpoint) metrics_->restore(progress_.update, origin_.checkpoint->description(), timer.seconds() * 1e3);
    metrics_->start({.version = version_string(),
                     .world_size = world_.size(),
                     .strategy = std::string(sharded_->placement().name),
                     .options = &(options_json_ = to_json(options_)),
                     .parameters = sharded_->model().parameter_count(),
                     .plan_peak_bytes = sharded_->plan().peak_bytes,
                     .step = progress_.update,
                     .max_step = options_.max_update});
    last_save_ = origin_.checkpoint ? progress_.update : 0;
    origin_.checkpoint.reset();
    origin_.pretrained.reset();
    start_tokens_ = progress_.tokens;
    since_start_.restart();
  }

  bool done() const { return progress_.update >= options_.max_update; }
  std::uint64_t update() const { return progress_.update; }

  /// Forward, backward, reduction, optimizer: one update.
  void step() {
    const Timer timer;
    Executor& executor = sharded_->executor();
    executor.reset_times();
    const double rate = learning_rate(schedule_of(options_), progress_.update + 1);
    const UpdateResult result =
        executor.run_update([&](std::size_t micro, std::int32_t* inputs,
                                std::int32_t* targets) { train_batches_->read(progress_.sequences, micro, inputs, targets); },
                            {.update = progress_.update + 1,
                             .learning_rate = rate,
                             .clip_norm = options_.clip_norm,
                             .tokens = static_cast<double>(cut_.tokens_per_update())});
    if (!result.finite())
      throw CollectiveError(
          format("update {} is not finite (loss {}, {} infinite or NaN elements in the gradient), and the weights were left as "
                 "they are; lower "
                 "--lr, lengthen --warmup-updates or set --clip-norm, and start again: the last complete checkpoint is used",
                 progress_.update + 1, result.loss, result.non_finite),
          0, true, exit_code::failed);
    ++progress_.update;
    progress_.sequences += cut_.sequences_per_update();
    progress_.tokens += cut_.tokens_per_update();
    const double seconds = timer.seconds();
    metrics_->train({.step = progress_.update,
                     .loss = result.loss,
                     .learning_rate = rate,
                     .gradient_norm = result.gradient_norm,
                     .tokens = progress_.tokens,
                     .tokens_per_second = static_cast<double>(cut_.tokens_per_update()) / seconds,
                     .ms = seconds * 1e3,
                     .mfu = mfu(static_cast<double>(cut_.tokens_per_update()) / seconds),
                     .comm_exposed_ms = executor.times().collectives * 1e3,
                     .mem_peak_bytes = executor.peak_bytes()});
  }

  void validate() {
    if (!valid_batches_) return;
    const Timer timer;
    double sum = 0;
    for (std::size_t b = 0; b < valid_batches_->batches(); ++b)
      sum += sharded_->executor().evaluate(
          [&](std::size_t, std::int32_t* inputs, std::int32_t* targets) { valid_batches_->read(b, inputs, targets); });
    world_.all_reduce(*stream_, &sum, 1);
    metrics_->valid({progress_.update, sum / static_cast<double>(valid_batches_->targets()), valid_batches_->targets(),
                     timer.seconds() * 1e3});
  }

  void save() {
    if (last_save_ == progress_.update) return;
    const Timer timer;
    Executor& executor = sharded_->executor();
    const std::vector<ShardState> states = {{"parameters", executor.parameters()},
                                            {adamw_states[0], executor.optimizer_state(0)},
                                            {adamw_states[1], executor.optimizer_state(1)}};
    const CheckpointHeader header = {.config = sharded_->model().config(),
                                     .progress = progress_,
                                     .strategy = std::string(sharded_->placement().name),
                                     .world_size = world_.size(),
                                     .shards = sharded_->layout().shards(),
                                     .wrap = {options_.wrap_layers},
                                     .optimizer = options_.optimizer,
                                     .options_json = options_json_.dump(),
                                     .version = version_string()};
    const auto folder =
        save_checkpoint(options_.save_dir, header, sharded_->layout(), sharded_->shard(), sharded_->replica(), states, world_);
    last_save_ = progress_.update;
    metrics_->save(progress_.update, folder, timer.seconds() * 1e3);
  }

  void stopped(const std::string& reason) { metrics_->stop(progress_.update, reason); }
  void already_done() {
    metrics_->say(
        format("nothing to do: {} of {} updates are done; raise --max-update to go on", progress_.update, options_.max_update));
  }

  /// The closing lines: how it went, and planned beside measured memory.
  void finish(const std::string& next) {
    const std::size_t measured = max_over_ranks(world_, *stream_, sharded_->executor().peak_bytes());
    const std::size_t process = max_over_ranks(world_, *stream_, process_peak_bytes() - start_bytes_);
    metrics_->say(
        format("memory per rank: planned {}, measured {} in the arena; process {} since start-up, {} with the overheads above",
               format_bytes(static_cast<double>(sharded_->plan().peak_bytes)), format_bytes(static_cast<double>(measured)),
               format_bytes(static_cast<double>(process)),
               format_bytes(static_cast<double>(sharded_->plan().peak_bytes + overhead_bytes()))));
    metrics_->end({progress_.update, progress_.tokens,
                   static_cast<double>(progress_.tokens - start_tokens_) / since_start_.seconds(), measured, next});
  }

 private:
  void fill_weights() {
    Executor& executor = sharded_->executor();
    const auto& parameters = sharded_->model().parameters();
    if (origin_.checkpoint) {
      origin_.checkpoint->verify(world_.rank(), world_.size());
      const std::vector<ShardState> states = {{"parameters", executor.parameters()},
                                              {adamw_states[0], executor.optimizer_state(0)},
                                              {adamw_states[1], executor.optimizer_state(1)}};
      load_states(*origin_.checkpoint, parameters, sharded_->layout(), sharded_->shard(), states);
      progress_ = origin_.checkpoint->header().progress;
    } else if (origin_.pretrained) {
      load_parameters(*origin_.pretrained, parameters, sharded_->layout(), sharded_->shard(), executor.parameters());
    } else {
      executor.initialize_parameters(options_.seed);
    }
  }

  /// Share of what the cores of the job can do, if that has been measured.
  std::optional<double> mfu(double tokens_per_second) const {
    if (!peak_flops_) return {};
    return sharded_->model().flops_per_token(cut_.T) * tokens_per_second / *peak_flops_;
  }

  std::size_t staging_bytes() {
    return world_.staging_bytes() + sharded_->mesh().shard->staging_bytes() + sharded_->mesh().replicate->staging_bytes();
  }
  std::size_t gemm_bytes() const {
    const TransformerConfig& config = sharded_->model().config();
    return kernels::gemm_workspace_bytes(cut_.B * cut_.T, std::max({config.ffn_width, 3 * config.width, config.vocab_size}));
  }
  std::size_t overhead_bytes() { return staging_bytes() + gemm_bytes(); }
  std::string overheads() {
    return format("  and beside it: {} communication staging, about {} that oneDNN's gemm takes and frees\n",
                  format_bytes(static_cast<double>(staging_bytes())), format_bytes(static_cast<double>(gemm_bytes())));
  }

  const TrainOptions& options_;
  Communicator& world_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  const std::size_t start_bytes_;
  int threads_ = 1;
  std::optional<double> peak_flops_;
  std::optional<Metrics> metrics_;
  Origin origin_;
  std::optional<ShardedModel> sharded_;
  BatchCut cut_;
  std::optional<TokenFile> train_file_, valid_file_;
  std::optional<TrainBatches> train_batches_;
  std::optional<ValidBatches> valid_batches_;
  nlohmann::json options_json_;
  Progress progress_;
  std::uint64_t last_save_ = 0, start_tokens_ = 0;
  Timer since_start_;
};

bool every(std::size_t interval, std::uint64_t update) { return interval > 0 && update % interval == 0; }

/// What any rank has been asked since the last call. Collective.
Requests agreed_requests(SignalWatch& watch, Communicator& world, Stream& stream) {
  Requests mine = watch.poll();
  std::int64_t flags[2] = {mine.stop, mine.save};
  world.all_reduce(stream, flags, 2);
  return {flags[0], flags[1]};
}

}  // namespace

int train(const TrainOptions& options, Communicator& world) {
  Run run(options, world);
  if (options.dry_run) return run.print_plan(), exit_code::done;
  run.announce();
  run.prepare();
  if (run.done()) return run.already_done(), exit_code::done;

  SignalWatch watch(options.save_dir, world.rank() == 0);
  const auto stream = make_cpu_device()->make_stream();
  while (!run.done()) {
    run.step();

    const Requests requests = agreed_requests(watch, world, *stream);
    if (every(options.save_interval_updates, run.update()) || requests.save > 0 || requests.stop > 0) run.save();
    if (requests.save > 0) watch.honoured_save();
    if (requests.stop > 0) watch.honoured_stop();
    if (requests.stop > 0 && !run.done()) {
      run.stopped(watch.stop_reason());
      run.finish("stopped on request; the same command continues");
      world.barrier();
      return exit_code::stopped;
    }
    if (every(options.validate_interval_updates, run.update()) && !run.done()) run.validate();
  }
  run.save();
  run.validate();
  run.finish("done; fsdp-evaluate, fsdp-generate and fsdp-consolidate read " + options.save_dir.string());
  world.barrier();
  return exit_code::done;
}

}  // namespace fsdp
