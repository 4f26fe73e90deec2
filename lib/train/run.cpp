#include "train/run.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"
#include "base/system.hpp"
#include "base/version.hpp"
#include "comm/agree.hpp"
#include "files/json.hpp"
#include "train/machine.hpp"
#include "train/mean_loss.hpp"

namespace fsdp {

namespace {

/// Tokens of a sample of what the model says.
constexpr std::size_t sample_tokens = 64;

}  // namespace

Run::Run(Setup& setup, FlightLanes& flight)
    : setup_(setup), flight_(flight), sharded_(*setup.sharded), start_tokens_(setup.progress.tokens) {
  std::optional<FlightNote> note(std::in_place, flight_, "prepare the run", 0);
  const TrainOptions& options = setup_.options;
  if (options.sharding.types.parameter == DType::f16) {
    scaler_.emplace(options.loss_scaler);
    if (setup_.progress.loss_scaler && !options.reset_optimizer) scaler_->restore(*setup_.progress.loss_scaler);
  }
  if (options.skip_spikes > 0) {
    spikes_.emplace(options.skip_spikes);
    if (setup_.progress.spikes && !options.reset_optimizer) spikes_->restore(*setup_.progress.spikes);
  }
  setup_.progress.spikes = spikes_ ? std::optional(spikes_->state()) : std::nullopt;
  hosts_ = setup_.world.gather(host_name());
  require_memory();
  sharded_.allocate(*setup_.rank.device, options.execution, options.comm);
  if (const std::string& data = sharded_.mesh().data_description; !data.empty())
    setup_.metrics->say("collectives of GPUs: " + data);
  if (setup_.tokenizer)
    generator_.emplace(sharded_.executor(), setup_.world, sharded_.transformer().config(), *setup_.tokenizer,
                       GenerationOptions{.sampling = {.temperature = 0.8},
                                         .max_new_tokens = sample_tokens,
                                         .seed = options.seed,
                                         .end_tokens = setup_.sample_end});
  if (options.log_group_norms) group_norms_.emplace(sharded_, options.sharding.optimizer);
  agree(setup_.world, [&] {
    saver_.emplace(options.save, setup_.rank.device->allocate_staging(setup_.memory.snapshot), sharded_.layout(), setup_.world,
                   *setup_.metrics, setup_.save_lock ? &*setup_.save_lock : nullptr, setup_.progress.update);
    if (!options.trace.file.empty()) recorder_.emplace(sharded_.plan(), options.trace.updates);
  });
  sharded_.executor().note_operations(&flight_);
  const Timer timer;
  agree(setup_.world, [&] { fill_weights(); });
  sharded_.executor().publish_parameters();
  Origin& origin = setup_.origin;
  if (origin.checkpoint) {
    const double ms = timer.seconds() * 1e3;
    const std::size_t most = setup_.world.max(origin.checkpoint->bytes_read());
    setup_.metrics->restore(setup_.progress.update, origin.checkpoint->description(), ms, most,
                            origin.checkpoint->file_bytes());
  }
  origin.checkpoint.reset();
  origin.pretrained.reset();
  note.reset();
  begin_reading(setup_.progress.data.sequences);
  agree(setup_.world, [&] {
    await_batch();
    if (data_problem_) std::rethrow_exception(data_problem_);
  });
  energy_.emplace(*setup_.rank.device, *setup_.rank.node);
  updating_s_ = 0;
}

/// The system promises memory that it does not have, and kills whoever uses it: better to be told before.
void Run::require_memory() {
  const bool on_cpu = is_host(setup_.memory.device);  // a GPU says itself what it has not
  const std::size_t mine = on_cpu ? setup_.memory.total() : setup_.memory.on_host();
  const std::int64_t together = setup_.rank.node->sum(narrow<std::int64_t>(mine));
  agree(setup_.world, [&] {
    const std::size_t available = available_memory_bytes();
    if (static_cast<std::size_t>(together) > available)
      throw UserError(format("there is too little memory ({} {} each by the plan above, {} are available); use more nodes{}",
                             setup_.rank.node->size() == 1 ? "the rank on this node needs"
                                                           : format("the {} ranks on this node need", setup_.rank.node->size()),
                             format_bytes(static_cast<double>(mine)), format_bytes(static_cast<double>(available)),
                             on_cpu ? ", a smaller --batch-size, --checkpoint-activations or --sharding-strategy full"
                                    : ", or offload less of the model, or nothing"));
  });
}

/// May fail on this rank alone.
void Run::fill_weights() {
  Executor& executor = sharded_.executor();
  const auto& parameters = sharded_.model().parameters();
  if (setup_.origin.checkpoint) {
    std::vector<ShardState> wanted = executor.states();
    if (setup_.options.reset_optimizer) wanted.erase(wanted.begin() + 1, wanted.end());
    load_states(*setup_.origin.checkpoint, parameters, sharded_.layout(), sharded_.shard(), wanted);
    std::size_t fresh = 0;
    for (const Unit& unit : sharded_.layout().units())
      for (const std::size_t p : unit.parameters) {
        const auto& kept = unit.rule->states;
        fresh += unit.trainable && !kept.empty() &&
                 !setup_.origin.checkpoint->has_state(std::string(kept.front().name), parameters[p].name);
      }
    if (fresh > 0 && !setup_.options.reset_optimizer)
      warn(
          format("{} parameter tensors were not trained before; their optimizer state starts at zero, and with an Adam "
                 "their first steps are up to 6.6 times --lr: lower it or warm up",
                 fresh));
  } else if (setup_.origin.pretrained) {
    load_parameters(*setup_.origin.pretrained, parameters, sharded_.layout(), sharded_.shard(), executor.parameters(),
                    setup_.origin.fresh);
    executor.initialize_parameters(setup_.options.seed, setup_.origin.fresh);
  } else {
    executor.initialize_parameters(setup_.options.seed);
  }
}

void Run::begin_reading(std::uint64_t position) {
  if (setup_.train_batches->at_end(position)) return;
  reader_.start([this, position] {
    Executor& executor = sharded_.executor();
    for (std::size_t k = 0; k < setup_.cut.K; ++k) {
      std::int32_t* const inputs = executor.next_batch(k);
      setup_.train_batches->read(position, k, inputs, inputs + executor.batch().inputs / sizeof(std::int32_t));
    }
  });
}

void Run::await_batch() {
  data_wait_ns_ = 0;
  if (done()) return;
  const FlightNote note(flight_, "read the batch", update() + 1);
  const Timer timer;
  try {
    reader_.finish();
  } catch (...) {
    data_problem_ = std::current_exception();
  }
  data_wait_ns_ = std::llround(1e9 * timer.seconds());
  updating_s_ += timer.seconds();
}

void Run::refuse_data() {
  agree(setup_.world, [&] {
    try {
      if (data_problem_) std::rethrow_exception(data_problem_);
    } catch (const std::exception& error) {
      throw RunError(format("{}; update {} is saved, and the same command goes on from there once the data are whole again",
                            error.what(), setup_.progress.update));
    }
  });
  throw InternalError("a rank could not read its data, and does not say so");
}

void Run::begin_update() {
  since_update_.restart();
  Executor& executor = sharded_.executor();
  executor.reset_times();
  if (recorder_) executor.record(recorder_->next(update() + 1));
  scalars_ = {.update = update() + 1,
              .learning_rate = learning_rate(setup_.schedule(), update() + 1),
              .clip_norm = setup_.options.clip_norm,
              .clip_value = setup_.options.clip_value,
              .state_began = setup_.progress.optimizer_began,
              .dropout = {.residual = static_cast<float>(setup_.options.dropout),
                          .attention = static_cast<float>(setup_.options.attention_dropout),
                          .seed = static_cast<std::uint32_t>(setup_.options.seed),
                          .update = update() + 1,
                          .first_sequence = setup_.cut.first_sequence(0)},
              .tokens = static_cast<double>(setup_.train_batches->targets(setup_.progress.data.sequences)),
              .loss_scale = scaler_ ? scaler_->scale() : 1};
  if (spikes_) {
    const SpikeLimits most = spikes_->limits();
    scalars_.most_loss = most.loss, scalars_.most_norm = most.norm;
  }
  executor.begin_update(scalars_);
  begin_reading(setup_.train_batches->after(setup_.progress.data.sequences));  // while this update is computed
}

void Run::forward_backward() { sharded_.executor().forward_backward(); }
void Run::gradient_norm() { sharded_.executor().gradient_norm(); }

bool Run::update_parameters() {
  const UpdateResult result = sharded_.executor().update_parameters();
  if (!result.finite() && !scaler_) refuse(result);
  if (scaler_ && !scaler_->update(result.finite())) {
    setup_.metrics->say(format("overflow at loss scale {}, and no less is tried", scalars_.loss_scale));
    refuse(result);
  }
  if (scaler_) setup_.progress.loss_scaler = scaler_->state();
  setup_.progress.data.sequences = setup_.train_batches->after(setup_.progress.data.sequences);
  if (spikes_ && result.finite()) {
    spikes_->update(result.loss, result.gradient_norm);
    setup_.progress.spikes = spikes_->state();
  }
  energy_->look();
  const double seconds = since_update_.seconds();
  updating_s_ += seconds;
  if (!result.finite() || result.is_spike) {
    SkipMetrics skip{setup_.progress.update + 1, seconds * 1e3, setup_.progress.data.sequences};
    if (result.is_spike)
      skip.spike = {result.loss, result.gradient_norm, scalars_.most_loss, scalars_.most_norm};
    else
      skip.overflow = {scalars_.loss_scale, scaler_->scale()};
    setup_.metrics->skip(skip);
    return false;
  }
  ++setup_.progress.update;
  setup_.progress.tokens += static_cast<std::uint64_t>(scalars_.tokens);
  last_update_s_ = seconds;
  const double positions_per_second = static_cast<double>(setup_.cut.sequences_per_update() * setup_.cut.T) / seconds;
  std::span<const std::pair<std::string, double>> group_norms;
  if (group_norms_) group_norms = group_norms_->measure(scalars_.loss_scale);
  last_ = {.step = setup_.progress.update,
           .loss = result.loss,
           .learning_rate = scalars_.learning_rate,
           .gradient_norm = result.gradient_norm,
           .tokens = setup_.progress.tokens,
           .tokens_per_second = scalars_.tokens / seconds,
           .ms = seconds * 1e3,
           .mfu = setup_.mfu(positions_per_second),
           .loss_scale = scaler_ ? std::optional(scalars_.loss_scale) : std::nullopt,
           .comm_exposed_ms =
               sharded_.executor().knows_times() ? std::optional(sharded_.executor().times().exposed * 1e3) : std::nullopt,
           .mem_peak_bytes = sharded_.executor().peak_bytes(),
           .group_norms = group_norms,
           .positions_per_second = positions_per_second};
  if (recorder_ && recorder_->full()) write_trace();
  return true;
}

std::int64_t Run::computing_ns() const {
  const Executor& executor = sharded_.executor();
  return executor.knows_times() ? std::llround(1e9 * (executor.times().total() - executor.times().exposed)) : 0;
}

std::optional<Straggler> Run::find_straggler(std::span<const std::int64_t> computing_ns) const {
  if (computing_ns.size() < 2 || std::find(computing_ns.begin(), computing_ns.end(), 0) != computing_ns.end()) return {};
  const auto slowest = std::max_element(computing_ns.begin(), computing_ns.end());
  std::vector<std::int64_t> sorted(computing_ns.begin(), computing_ns.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const double median = 0.5 * static_cast<double>(sorted[(n - 1) / 2] + sorted[n / 2]);
  const auto rank = static_cast<std::size_t>(slowest - computing_ns.begin());
  return Straggler{narrow<int>(rank), hosts_[rank], 1e-6 * static_cast<double>(*slowest), 1e-6 * median};
}

void Run::report(std::span<const std::int64_t> computing_ns, std::int64_t data_wait_ns) {
  last_.data_wait_ms = 1e-6 * static_cast<double>(data_wait_ns);
  if (setup_.world.rank() == 0 && update() % setup_.options.log_interval == 0) last_.straggler = find_straggler(computing_ns);
  setup_.metrics->train(last_);
}

/// Ends the run after an update that is not finite, and says where that began: on the rank that is the first in the order of
/// the plan to have something that is not finite, of its own.
void Run::refuse(const UpdateResult& result) {
  const std::optional<NonFinite> mine = sharded_.executor().find_non_finite(scalars_);
  const auto ranks = static_cast<std::size_t>(setup_.world.size());
  std::array<std::int64_t, 3> words = {};  // 1 + operation, or 0; unit; parameter
  if (mine)
    words = {narrow<std::int64_t>(mine->operation + 1), narrow<std::int64_t>(mine->unit),
             narrow<std::int64_t>(mine->parameter)};
  const std::vector<std::int64_t> all = setup_.world.gather(words);
  std::size_t first = ranks;
  for (std::size_t r = 0; r < ranks; ++r)
    if (all[3 * r] > 0 && (first == ranks || all[3 * r] < all[3 * first])) first = r;
  std::string where = "the loss alone";
  if (first != ranks) {
    const Operation& op = sharded_.plan().update[static_cast<std::size_t>(all[3 * first]) - 1];
    if (op.kind == &kinds::embedding_forward)
      where = format("first in what the embedding gave on rank {}", first);
    else if (op.kind == &kinds::block_forward)
      where = format("first in what block {} gave going forward on rank {}", op.block, first);
    else
      where = format("first in the gradient of {}, unit {}, on rank {}",
                     sharded_.model().parameters()[static_cast<std::size_t>(all[3 * first + 2])].name,
                     sharded_.layout().units()[static_cast<std::size_t>(all[3 * first + 1])].name, first);
  }
  if (saver_->saving()) saver_->finish();  // what has been promised
  throw CollectiveError(
      format("update {} is not finite (loss {}, {} infinite or NaN elements in the gradient, {}), and the weights were left as "
             "they are; lower --lr, lengthen --warmup-updates or set --clip-norm{}{}, and start again, from {}",
             setup_.progress.update + 1, result.loss, result.non_finite, where,
             scaler_ ? ", lower --fp16-init-scale, --min-loss-scale or --threshold-loss-scale, or use --bf16" : "",
             setup_.options.sharding.types.reduce == DType::f16 ? ", or reduce in --reduce-dtype bf16 or fp32" : "",
             saver_->last_update() > 0 ? format("the last complete checkpoint, that of update {}", saver_->last_update())
                                       : "the beginning"),
      0, true, exit_code::failed);
}

/// Training is worth more than its trace: if it cannot be written, a warning says so.
void Run::write_trace() {
  const std::string problem =
      fsdp::write_trace(*recorder_, sharded_, setup_.world, setup_.trace_file ? &*setup_.trace_file : nullptr);
  if (!problem.empty())
    warn(problem);
  else if (recorder_->updates().empty())
    warn("the trace is empty (the first update of a run is not recorded, and there was no other)");
  else
    setup_.metrics->say(format("trace of {}: {}; open it at https://ui.perfetto.dev",
                               plural(recorder_->updates().size(), "update"), setup_.options.trace.file.string()));
  recorder_.reset();
  setup_.trace_file.reset();
}

void Run::validate(const std::function<bool()>& stop) {
  if (!setup_.valid_batches) return;
  const FlightNote note(flight_, "validate", update());
  const Timer timer;
  std::optional<double> loss;
  try {
    const auto progress = [&](std::size_t batches) {
      saver_->announce();
      setup_.metrics->validating(update(), batches, setup_.valid_batches->batches(), timer.seconds());
    };
    loss = mean_loss(sharded_.executor(), *setup_.valid_batches, setup_.world, progress, stop);
  } catch (const CollectiveError& error) {  // data that cannot be read: nothing of the training is wrong
    save(true);
    throw CollectiveError(format("{}; update {} is saved", error.what(), setup_.progress.update), error.speaker, error.all,
                          error.exit_code);
  }
  if (!loss) return setup_.metrics->say(format("the validation after update {} is left off: the run is to stop", update()));
  setup_.metrics->valid({setup_.progress.update, *loss, setup_.valid_batches->targets(), timer.seconds() * 1e3});
}

void Run::sample() {
  if (!generator_) return;
  const FlightNote note(flight_, "sample", update());
  generator_->run({setup_.sample_prompt}, [&](const GeneratedText& text) {
    setup_.metrics->say(format("sample {}: {}{}", update(), setup_.options.sample_prompt, text.text));
  });
}

void Run::save(bool wait) {
  const FlightNote note(flight_, "save", update());
  const CheckpointHeader header = {.model = sharded_.transformer().config(),
                                   .progress = setup_.progress,
                                   .strategy = std::string(sharded_.placement().name),
                                   .world_size = setup_.world.size(),
                                   .shards = sharded_.layout().shards(),
                                   .units = {sharded_.layout().units().begin(), sharded_.layout().units().end()},
                                   .optimizer = std::string(setup_.options.sharding.optimizer.kind->name),
                                   .options_json = json_text(setup_.options_json),
                                   .arithmetic = setup_.arithmetic(),
                                   .model_folder = setup_.origin.model_folder,
                                   .tokenizer_files = setup_.tokenizer_files,
                                   .version = version_string()};
  saver_->save(header, sharded_.executor().states(), wait);
}

void Run::finish(const std::string& next) {
  if (recorder_) write_trace();  // of fewer updates than were asked for
  const auto bytes = [](std::size_t n) { return format_bytes(static_cast<double>(n)); };
  Communicator& world = setup_.world;
  const Mesh& mesh = sharded_.mesh();
  // The system counts here, too, what collectives read in the neighbours' memory.
  const std::size_t borrowed = mesh.shard->borrowed_bytes() + mesh.replicate->borrowed_bytes();
  const std::size_t measured = world.max(sharded_.executor().peak_bytes());
  const std::size_t process = world.max(process_peak_bytes() - setup_.start_bytes);
  const bool on_cpu = is_host(setup_.memory.device);
  const std::size_t total = setup_.memory.total();
  std::string expected =
      format("{} expected: the plan's buffers, {} beside them", bytes(total + borrowed), bytes(total - setup_.memory.plan));
  if (borrowed > 0)
    expected +=
        format(",\n                      and {} in other ranks' slots, which the system counts here, too", bytes(borrowed));
  if (process > total + borrowed)
    expected += format(",\n                      and {} more: code that was loaded when it first ran, and memory of libraries",
                       bytes(process - total - borrowed));
  setup_.metrics->say(
      format("peak memory per rank:\n"
             "  the plan's buffers  {} used, {} planned\n"
             "  the process         {} used since {}{}",
             bytes(measured), bytes(setup_.memory.plan), bytes(process), setup_.measured_since,
             on_cpu ? ", " + expected : " of the host's memory"));
  const double rate = updating_s_ > 0 ? static_cast<double>(setup_.progress.tokens - start_tokens_) / updating_s_ : 0;
  setup_.metrics->end({setup_.progress.update, setup_.progress.tokens, rate, measured, next,
                       setup_.progress.tokens - start_tokens_, energy_->total(world)});
}

}  // namespace fsdp
