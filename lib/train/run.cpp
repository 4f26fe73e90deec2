#include "train/run.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "base/version.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "fsdp/timeline.hpp"
#include "kernels/kernels.hpp"
#include "kernels/threads.hpp"
#include "train/machine.hpp"
#include "train/mean_loss.hpp"

namespace fsdp {

namespace {

/// Brings in oneDNN's code, so that it does not count as memory of the run, and returns what the process has used so far.
std::size_t start_up(Stream& stream) {
  std::array<float, 3 * 64> x{};
  kernels::gemm(stream, kernels::Trans::no, kernels::Trans::no, 8, 8, 8, &x[0], 8, &x[64], 8, &x[128], 8,
                kernels::Write::overwrite);
  return process_peak_bytes();
}

std::string plural(std::size_t n, const char* what) { return format("{} {}{}", n, what, n == 1 ? "" : "s"); }

}  // namespace

std::size_t gemm_bytes(const TransformerConfig& config, BatchShape batch, DType type) {
  const std::size_t R = batch.rows(), C = config.width, F = std::max(config.ffn_width, 3 * C);
  const std::size_t chunk = Transformer::head_rows(batch, config.vocab_size),
                    piece = Transformer::head_columns(config.vocab_size);
  const kernels::ProductShape products[] = {{R, C, F}, {R, F, C}, {C, R, F}, {chunk, C, piece}, {piece, chunk, C}};
  return kernels::gemm_workspace_bytes(type, products);
}

Run::Run(const TrainOptions& options, Communicator& world)
    : options_(options),
      world_(world),
      node_(world.split_by_node()),
      device_(make_cpu_device(options.cpu)),
      stream_(device_->make_stream()),
      start_bytes_(start_up(*stream_)),
      options_json_(to_json(options)) {
  const CpuShare share = share_of_rank(*node_, *stream_, options.threads, options.cpu.communication_thread ? 1 : 0);
  threads_ = share.threads;
  kernels::set_threads(threads_);
  double cores = share.cores;
  world.all_reduce(*stream_, &cores, 1);
  if (const auto per_core = noted_peak_per_core(options.sharding.types.parameter)) peak_flops_ = *per_core * cores;

  const bool first = world.rank() == 0;
  agree(world, [&] {
    metrics_.emplace(options.dry_run ? std::filesystem::path() : options.log_file, options.log_interval, first);
    if (first && !options.dry_run) save_lock_.emplace(options.save.folder);
    if (first && !options.dry_run && !options.trace.file.empty()) trace_file_.emplace(options.trace.file);
  });
  origin_ = find_origin(options, world, *stream_);
  for (const std::string& warning : origin_.warnings) warn(warning);
  if (origin_.checkpoint) progress_ = origin_.checkpoint->header().progress;
  if (options.sharding.types.parameter == DType::f16) {
    scaler_.emplace(options.loss_scaler);
    if (progress_.loss_scaler && !options.reset_optimizer) scaler_->restore(*progress_.loss_scaler);
  }
  if (options.reset_optimizer) progress_.optimizer_began = progress_.update;
  start_tokens_ = progress_.tokens;
  agree(world, [&] { check_sharding(origin_.config, options.sharding, world.size()); });
  sharded_.emplace(origin_.config, options.sharding, world);
  for (const std::string& warning : sharded_->warnings()) warn(warning);
  cut_ = {options.sharding.batch.B, options.sharding.batch.T, options.sharding.plan.micro_batches, world.rank(), world.size()};
}

void Run::print_plan() const {
  if (world_.rank() != 0) return;
  const Layout& layout = sharded_->layout();
  std::printf("units:\n");
  for (const Unit& unit : layout.units())
    std::printf("  %-24s %4zu tensors  %12zu elements  %12zu with padding  %s\n", unit.name.c_str(), unit.parameters.size(),
                unit.numel, unit.padded_numel,
                format_bytes(static_cast<double>(unit.padded_numel * size_of(unit.types.parameter))).c_str());
  const Transformer& model = sharded_->model();
  const auto stages = model.parameters_by_stage();
  std::size_t block_numel = 0;
  for (const std::size_t p : stages[1]) block_numel += numel(model.parameters()[p].shape);
  std::printf("memory plan per rank:\n%s%soperations of one update:\n%s\n%s", describe_memory(sharded_->plan()).c_str(),
              overheads().c_str(), describe_operations(sharded_->plan(), sharded_->plan().update, layout).c_str(),
              draw_timeline(sharded_->plan().update, layout, block_numel).c_str());
}

void Run::announce() {
  const Plan& plan = sharded_->plan();
  const Transformer& model = sharded_->model();
  metrics_->say(format("fsdp {}: {}, {} per rank, {}, {}", version_string(), device_->description(),
                       plural(static_cast<std::size_t>(threads_), "thread") +
                           (options_.cpu.communication_thread ? " and one for communication" : ""),
                       kernels::gemm_description(), world_.description()));
  if (const DType type = options_.sharding.types.parameter; !kernels::multiplies(type))
    metrics_->say(format(
        "warning: {} products convert their operands to fp32 here (this machine has no instructions for them): memory and "
        "transfers are halved, and a step takes longer than with --precision fp32",
        name_of(type)));
  std::size_t trained = 0;
  for (const Unit& unit : sharded_->layout().units()) trained += unit.trainable ? unit.numel : 0;
  metrics_->say(format("model: {} parameters{}, {}, width {}; strategy {} over {}; {} of {} tokens per update",
                       format_count(static_cast<double>(model.parameter_count())),
                       trained == model.parameter_count()
                           ? ""
                           : format(" ({} trained, the others frozen)", format_count(static_cast<double>(trained))),
                       plural(model.blocks(), "block"), model.config().width, sharded_->placement().name,
                       plural(static_cast<std::size_t>(world_.size()), "rank"), plural(cut_.sequences_per_update(), "sequence"),
                       cut_.T));
  metrics_->say("memory plan per rank:\n" + describe_memory(plan) + overheads());
  metrics_->start({.version = version_string(),
                   .world_size = world_.size(),
                   .strategy = std::string(sharded_->placement().name),
                   .options = &options_json_,
                   .parameters = model.parameter_count(),
                   .plan_peak_bytes = plan.peak_bytes,
                   .step = progress_.update,
                   .max_step = last_update()});
}

void Run::prepare() {
  require_memory();
  sharded_->allocate(*device_, options_.execution);
  if (options_.log_group_norms) group_norms_.emplace(*sharded_, options_.sharding.optimizer);
  agree(world_, [&] {
    snapshot_ = device_->allocate(snapshot_bytes());
    if (!options_.trace.file.empty()) recorder_.emplace(sharded_->plan(), options_.trace.updates);
  });
  const Timer timer;
  agree(world_, [&] { fill_weights(); });
  sharded_->executor().publish_parameters();
  if (origin_.checkpoint) {
    const double ms = timer.seconds() * 1e3;
    const std::size_t most = max_over_ranks(world_, *stream_, origin_.checkpoint->bytes_read());
    metrics_->restore(progress_.update, origin_.checkpoint->description(), ms, most, origin_.checkpoint->file_bytes());
  }
  last_save_ = progress_.update;
  origin_.checkpoint.reset();
  origin_.pretrained.reset();
  batch_.resize(batch_bytes() / sizeof batch_[0]);
  agree(world_, [&] {
    read_ahead();
    if (data_problem_) std::rethrow_exception(data_problem_);
  });
  since_start_.restart();
}

bool Run::done() const {
  return (options_.max_update != 0 && progress_.update >= options_.max_update) ||
         (train_batches_ && train_batches_->at_end(progress_.data.sequences));
}

/// As far as it is known: an overflow in fp16 uses up data without an update.
std::uint64_t Run::last_update() const {
  const auto left = train_batches_ ? train_batches_->updates_left(progress_.data.sequences) : std::nullopt;
  if (!left) return options_.max_update;
  const std::uint64_t of_data = progress_.update + *left;
  return options_.max_update == 0 ? of_data : std::min(of_data, options_.max_update);
}

/// Where passes over the data are the only end, the decay ends with them: a function of the update and the position, so that a
/// resumed run goes on with the same rates.
Schedule Run::schedule() const {
  Schedule schedule = options_.schedule;
  if (schedule.total == 0) schedule.total = last_update();
  return schedule;
}

void Run::open_data() {
  agree(world_, [&] { open_files(); });
}

/// May fail on this rank alone.
void Run::open_files() {
  const std::size_t vocabulary = sharded_->model().config().vocab_size;
  const auto rank = static_cast<std::size_t>(world_.rank()), ranks = static_cast<std::size_t>(world_.size());
  train_file_.emplace(options_.data);
  train_file_->check_vocabulary(vocabulary, rank, ranks);
  const DataPosition start{0, cut_.T, train_file_->tokens(), options_.shuffle, options_.seed};
  std::string notice;
  const bool goes_on = origin_.checkpoint && !options_.reset_dataloader;
  progress_.data = goes_on ? continue_data(progress_.data, start, &notice) : start;
  if (!notice.empty()) metrics_->say("warning: " + notice);
  if (options_.shuffle && progress_.data.seed != options_.seed)
    metrics_->say(format("warning: the data stay in the order of --seed {}, with which they began", progress_.data.seed));
  train_batches_.emplace(*train_file_, cut_, vocabulary,
                         DataOrder{.shuffle_seed = options_.shuffle ? std::optional(progress_.data.seed) : std::nullopt,
                                   .passes = options_.max_epoch});
  check_schedule(schedule());
  if (options_.valid.empty()) return;
  valid_file_.emplace(options_.valid);
  valid_file_->check_vocabulary(vocabulary, rank, ranks);
  valid_batches_.emplace(*valid_file_, cut_, vocabulary);
}

/// The system promises memory that it does not have, and kills whoever uses it: better to be told before.
void Run::require_memory() {
  const std::size_t mine = sharded_->plan().peak_bytes + bytes_beside_plan();
  auto together = narrow<std::int64_t>(mine);
  node_->all_reduce(*stream_, &together, 1);
  agree(world_, [&] {
    const std::size_t available = available_memory_bytes();
    if (static_cast<std::size_t>(together) > available)
      throw UserError(format(
          "there is too little memory ({} of {} on this node need {} each by the plan above, {} are available) use more "
          "nodes, a smaller --batch-size, --checkpoint-activations or --sharding-strategy full",
          plural(static_cast<std::size_t>(node_->size()), "rank"), plural(static_cast<std::size_t>(world_.size()), "rank"),
          format_bytes(static_cast<double>(mine)), format_bytes(static_cast<double>(available))));
  });
}

std::vector<ShardState> Run::states() {
  Executor& executor = sharded_->executor();
  std::vector<ShardState> all = {executor.parameters()};
  for (ShardState& state : executor.optimizer_states()) all.push_back(std::move(state));
  return all;
}

/// May fail on this rank alone.
void Run::fill_weights() {
  Executor& executor = sharded_->executor();
  const auto& parameters = sharded_->model().parameters();
  if (origin_.checkpoint) {
    std::vector<ShardState> wanted = states();
    if (options_.reset_optimizer) wanted.erase(wanted.begin() + 1, wanted.end());
    load_states(*origin_.checkpoint, parameters, sharded_->layout(), sharded_->shard(), wanted);
    std::size_t fresh = 0;
    for (const Unit& unit : sharded_->layout().units())
      for (const std::size_t p : unit.parameters) {
        const auto& kept = unit.rule->states;
        fresh += unit.trainable && !kept.empty() &&
                 !origin_.checkpoint->has_state(std::string(kept.front().name), parameters[p].name);
      }
    if (fresh > 0 && !options_.reset_optimizer)
      metrics_->say(format(
          "warning: {} parameter tensors were not trained before; their optimizer state starts at zero, and with an Adam "
          "their first steps are up to 6.6 times --lr: lower it or warm up",
          fresh));
  } else if (origin_.pretrained) {
    load_parameters(*origin_.pretrained, parameters, sharded_->layout(), sharded_->shard(), executor.parameters(),
                    origin_.fresh);
    executor.initialize_parameters(options_.seed, origin_.fresh);
  } else {
    executor.initialize_parameters(options_.seed);
  }
}

void Run::read_ahead() {
  if (done()) return;
  const std::size_t tokens = cut_.B * cut_.T;
  try {
    for (std::size_t k = 0; k < cut_.K; ++k) {
      std::int32_t* const inputs = batch_.data() + 2 * k * tokens;
      train_batches_->read(progress_.data.sequences, k, inputs, inputs + tokens);
    }
  } catch (...) {
    data_problem_ = std::current_exception();
  }
}

void Run::refuse_data() {
  agree(world_, [&] {
    try {
      if (data_problem_) std::rethrow_exception(data_problem_);
    } catch (const std::exception& error) {
      throw RunError(format("{}; update {} is saved, and the same command goes on from there once the data are whole again",
                            error.what(), progress_.update));
    }
  });
  throw InternalError("a rank could not read its data, and does not say so");
}

bool Run::step() {
  const Timer timer;
  Executor& executor = sharded_->executor();
  executor.reset_times();
  if (recorder_) executor.record(recorder_->next(progress_.update + 1));
  const double rate = learning_rate(schedule(), progress_.update + 1);
  const std::uint64_t tokens = train_batches_->targets(progress_.data.sequences);
  const BatchReader read = [&](std::size_t micro, std::int32_t* inputs, std::int32_t* targets) {
    const std::size_t tokens_of_one = cut_.B * cut_.T;
    const std::int32_t* const from = batch_.data() + 2 * micro * tokens_of_one;
    std::copy_n(from, tokens_of_one, inputs);
    std::copy_n(from + tokens_of_one, tokens_of_one, targets);
  };
  const UpdateScalars scalars = {.update = progress_.update + 1,
                                 .learning_rate = rate,
                                 .clip_norm = options_.clip_norm,
                                 .state_began = progress_.optimizer_began,
                                 .dropout = {.residual = static_cast<float>(options_.dropout),
                                             .attention = static_cast<float>(options_.attention_dropout),
                                             .seed = static_cast<std::uint32_t>(options_.seed),
                                             .update = progress_.update + 1,
                                             .first_sequence = cut_.first_sequence(0)},
                                 .tokens = static_cast<double>(tokens),
                                 .loss_scale = scaler_ ? scaler_->scale() : 1};
  const UpdateResult result = executor.run_update(read, scalars);
  if (!result.finite() && !scaler_) refuse(result, read, scalars);
  if (scaler_ && !scaler_->update(result.finite())) {
    metrics_->say(format("overflow at loss scale {}, and no less is tried", scalars.loss_scale));
    refuse(result, read, scalars);
  }
  if (scaler_) progress_.loss_scaler = scaler_->state();
  progress_.data.sequences = train_batches_->after(progress_.data.sequences);
  if (!result.finite()) {
    metrics_->skip(progress_.update + 1, scalars.loss_scale, scaler_->scale());
    return false;
  }
  ++progress_.update;
  progress_.tokens += tokens;
  const double seconds = timer.seconds(), tokens_per_second = static_cast<double>(tokens) / seconds;
  std::span<const std::pair<std::string, double>> group_norms;
  if (group_norms_) group_norms = group_norms_->measure(*stream_, scalars.loss_scale);
  metrics_->train({.step = progress_.update,
                   .loss = result.loss,
                   .learning_rate = rate,
                   .gradient_norm = result.gradient_norm,
                   .tokens = progress_.tokens,
                   .tokens_per_second = tokens_per_second,
                   .ms = seconds * 1e3,
                   .mfu = mfu(tokens_per_second),
                   .loss_scale = scaler_ ? std::optional(scalars.loss_scale) : std::nullopt,
                   .comm_exposed_ms = executor.times().exposed * 1e3,
                   .mem_peak_bytes = executor.peak_bytes(),
                   .group_norms = group_norms});
  if (recorder_ && recorder_->full()) write_trace();
  return true;
}

/// Ends the run after an update that is not finite, and says where that began: on the rank that is the first in the order of
/// the plan to have something that is not finite, of its own.
void Run::refuse(const UpdateResult& result, const BatchReader& read, const UpdateScalars& scalars) {
  const std::optional<NonFinite> mine = sharded_->executor().find_non_finite(read, scalars);
  const auto ranks = static_cast<std::size_t>(world_.size()), me = static_cast<std::size_t>(world_.rank());
  std::vector<std::int64_t> all(3 * ranks);  // of each rank: 1 + operation, or 0; unit; parameter
  if (mine) {
    all[3 * me] = narrow<std::int64_t>(mine->operation + 1);
    all[3 * me + 1] = narrow<std::int64_t>(mine->unit), all[3 * me + 2] = narrow<std::int64_t>(mine->parameter);
  }
  world_.all_reduce(*stream_, all.data(), all.size());
  std::size_t first = ranks;
  for (std::size_t r = 0; r < ranks; ++r)
    if (all[3 * r] > 0 && (first == ranks || all[3 * r] < all[3 * first])) first = r;
  std::string where = "the loss alone";
  if (first != ranks) {
    const Operation& op = sharded_->plan().update[static_cast<std::size_t>(all[3 * first]) - 1];
    if (op.kind == OperationKind::embedding_forward)
      where = format("first in what the embedding gave on rank {}", first);
    else if (op.kind == OperationKind::block_forward)
      where = format("first in what block {} gave going forward on rank {}", op.block, first);
    else
      where = format("first in the gradient of {}, unit {}, on rank {}",
                     sharded_->model().parameters()[static_cast<std::size_t>(all[3 * first + 2])].name,
                     sharded_->layout().units()[static_cast<std::size_t>(all[3 * first + 1])].name, first);
  }
  if (save_) finish_save();  // what has been promised
  throw CollectiveError(
      format("update {} is not finite (loss {}, {} infinite or NaN elements in the gradient, {}), and the weights were left as "
             "they are; lower --lr, lengthen --warmup-updates or set --clip-norm{}{}, and start again, from {}",
             progress_.update + 1, result.loss, result.non_finite, where,
             scaler_ ? ", lower --fp16-init-scale, --min-loss-scale or --threshold-loss-scale, or use --bf16" : "",
             options_.sharding.types.reduce == DType::f16 ? ", or reduce in --reduce-dtype bf16 or fp32" : "",
             last_save_ > 0 ? format("the last complete checkpoint, that of update {}", last_save_) : "the beginning"),
      0, true, exit_code::failed);
}

/// Training is worth more than its trace: if it cannot be written, a warning says so.
void Run::write_trace() {
  const std::string problem = fsdp::write_trace(*recorder_, *sharded_, world_, trace_file_ ? &*trace_file_ : nullptr);
  if (!problem.empty())
    metrics_->say("warning: " + problem);
  else if (recorder_->updates().empty())
    metrics_->say("warning: the trace is empty (the first update of a run is not recorded, and there was no other)");
  else
    metrics_->say(format("trace of {}: {}; open it at https://ui.perfetto.dev", plural(recorder_->updates().size(), "update"),
                         options_.trace.file.string()));
  recorder_.reset();
  trace_file_.reset();
}

void Run::validate() {
  if (!valid_batches_) return;
  const Timer timer;
  double loss;
  try {
    loss = mean_loss(sharded_->executor(), *valid_batches_, world_, *stream_,
                     [&](std::size_t done) { metrics_->validating(progress_.update, done, valid_batches_->batches()); });
  } catch (const CollectiveError& error) {  // data that cannot be read: nothing of the training is wrong
    save(true);
    throw CollectiveError(format("{}; update {} is saved", error.what(), progress_.update), error.speaker, error.all,
                          error.exit_code);
  }
  metrics_->valid({progress_.update, loss, valid_batches_->targets(), timer.seconds() * 1e3});
}

void Run::save(bool wait) {
  if (last_save_ != progress_.update) {
    if (save_) finish_save();
    since_save_began_.restart();
    const CheckpointHeader header = {.config = sharded_->model().config(),
                                     .progress = progress_,
                                     .strategy = std::string(sharded_->placement().name),
                                     .world_size = world_.size(),
                                     .shards = sharded_->layout().shards(),
                                     .units = {sharded_->layout().units().begin(), sharded_->layout().units().end()},
                                     .optimizer = std::string(options_.sharding.optimizer.kind->name),
                                     .options_json = json_text(options_json_),
                                     .model_folder = origin_.model_folder,
                                     .version = version_string()};
    const std::span<std::byte> snapshot = wait ? std::span<std::byte>() : std::span(snapshot_.data(), snapshot_.bytes());
    save_ = std::make_unique<CheckpointSave>(options_.save.folder, header, sharded_->layout(), states(), world_, snapshot,
                                             options_.save.compression);
    last_save_ = progress_.update;
    stall_s_ = since_save_began_.seconds();
    since_save_.restart();
  }
  if (save_ && (wait || snapshot_.bytes() == 0)) finish_save();
}

void Run::finish_save() {
  const Timer timer;
  const std::unique_ptr<CheckpointSave> save = std::move(save_);
  const std::filesystem::path folder = save->finish();
  metrics_->save(last_save_, folder, since_save_began_.seconds() * 1e3, (stall_s_ + timer.seconds()) * 1e3);
  if (options_.save.keep_last == 0 || world_.rank() != 0) return;
  const std::string problem = remove_old_checkpoints(options_.save.folder, options_.save.keep_last, options_.save.keep_every);
  if (!problem.empty()) metrics_->say("warning: " + problem);
}

std::size_t Run::snapshot_bytes() const {
  return options_.save.meanwhile()
             ? fsdp::snapshot_bytes(sharded_->layout(), options_.sharding.optimizer.state_type, world_.rank(), world_.size())
             : 0;
}

void Run::finish(const std::string& next) {
  if (recorder_) write_trace();  // of fewer updates than were asked for
  const bool ran = progress_.tokens > start_tokens_;
  std::size_t measured = 0;
  if (ran) {
    measured = max_over_ranks(world_, *stream_, sharded_->executor().peak_bytes());
    const std::size_t process = max_over_ranks(world_, *stream_, process_peak_bytes() - start_bytes_);
    const std::size_t planned = sharded_->plan().peak_bytes;
    const auto bytes = [](std::size_t n) { return format_bytes(static_cast<double>(n)); };
    std::string beside = format("{} beside it", bytes(bytes_beside_plan()));
    if (borrowed_bytes() > 0)
      beside += format(", {} in other ranks' slots, which the system counts here, too", bytes(borrowed_bytes()));
    metrics_->say(format(
        "memory of a rank, the most of all:\n"
        "  the plan's buffers  {} used, {} planned\n"
        "  the process         {} used since its start, {} expected (the plan's buffers, and {})",
        bytes(measured), bytes(planned), bytes(process), bytes(planned + bytes_beside_plan() + borrowed_bytes()), beside));
  }
  const double rate = ran ? static_cast<double>(progress_.tokens - start_tokens_) / since_start_.seconds() : 0;
  metrics_->end({progress_.update, progress_.tokens, rate, measured, next});
}

/// Share of what the cores of the job can do, if that has been measured.
std::optional<double> Run::mfu(double tokens_per_second) const {
  if (!peak_flops_) return {};
  return sharded_->model().flops_per_token(cut_.T) * tokens_per_second / *peak_flops_;
}

std::size_t Run::staging_bytes() const {
  const Mesh& mesh = sharded_->mesh();
  return world_.staging_bytes() + node_->staging_bytes() + mesh.shard->staging_bytes() + mesh.replicate->staging_bytes();
}

/// What the collectives read in the neighbours' memory, which the system counts here, too.
std::size_t Run::borrowed_bytes() const {
  const Mesh& mesh = sharded_->mesh();
  return mesh.shard->borrowed_bytes() + mesh.replicate->borrowed_bytes();
}

std::size_t Run::gemm_bytes() const {
  return fsdp::gemm_bytes(sharded_->model().config(), {cut_.B, cut_.T}, options_.sharding.types.parameter);
}

std::size_t Run::trace_bytes() const {
  return options_.trace.file.empty() ? 0 : Recorder::bytes(sharded_->plan(), options_.trace.updates);
}

std::size_t Run::batch_bytes() const { return 2 * cut_.K * cut_.B * cut_.T * sizeof(std::int32_t); }

/// What overheads() lists.
std::size_t Run::bytes_beside_plan() const {
  return staging_bytes() + gemm_bytes() + batch_bytes() + trace_bytes() + snapshot_bytes();
}

std::string Run::overheads() const {
  const std::string trace =
      trace_bytes() == 0 ? "" : format(", {} of the trace", format_bytes(static_cast<double>(trace_bytes())));
  const std::string snapshot =
      snapshot_bytes() == 0 ? "" : format(", {} that a save writes from", format_bytes(static_cast<double>(snapshot_bytes())));
  return format(
      "  and beside it: {} communication staging, about {} for matrix products to work in, {} of tokens read ahead{}{}\n",
      format_bytes(static_cast<double>(staging_bytes())), format_bytes(static_cast<double>(gemm_bytes())),
      format_bytes(static_cast<double>(batch_bytes())), snapshot, trace);
}

}  // namespace fsdp
