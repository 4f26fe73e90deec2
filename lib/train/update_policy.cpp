#include "train/update_policy.hpp"

#include <array>

#include "base/format.hpp"
#include "base/narrow.hpp"
#include "base/program.hpp"

namespace fsdp {

namespace {

std::optional<LossScaler> make_scaler(const TrainOptions& options, const Progress& progress) {
  if (options.sharding.types.parameter != DType::f16) return std::nullopt;
  LossScaler scaler(options.loss_scaler);
  if (progress.loss_scaler && !options.reset_optimizer) scaler.restore(*progress.loss_scaler);
  return scaler;
}

std::optional<SpikeFilter> make_filter(const TrainOptions& options, const Progress& progress) {
  if (options.skip_spikes <= 0) return std::nullopt;
  SpikeFilter filter(options.skip_spikes);
  if (progress.spikes && !options.reset_optimizer) filter.restore(*progress.spikes);
  return filter;
}

}  // namespace

UpdatePolicy::UpdatePolicy(const LoopContext& loop, const TrainBatches& batches)
    : loop_(loop),
      batches_(batches),
      scaler_(make_scaler(loop.options, loop.progress)),
      spikes_(make_filter(loop.options, loop.progress)) {
  loop.progress.spikes = spikes_ ? std::optional(spikes_->state()) : std::nullopt;
  note_end_of_schedule();
}

void UpdatePolicy::note_end_of_schedule() {
  const Schedule schedule = schedule_of(loop_.options, loop_.progress, batches_);
  loop_.progress.schedule_end = has_end(schedule) ? schedule.total : 0;
}

UpdateScalars UpdatePolicy::next_update() const {
  const TrainOptions& options = loop_.options;
  const Progress& progress = loop_.progress;
  const std::uint64_t update = progress.update + 1;
  UpdateScalars scalars = {.update = update,
                           .learning_rate = learning_rate(schedule_of(options, progress, batches_), update),
                           .clip_norm = options.clip_norm,
                           .clip_value = options.clip_value,
                           .state_began = progress.optimizer_began,
                           .dropout = {.residual = static_cast<float>(options.dropout),
                                       .attention = static_cast<float>(options.attention_dropout),
                                       .adapters = static_cast<float>(options.lora.dropout),
                                       .neftune_alpha = static_cast<float>(options.neftune_alpha),
                                       .seed = static_cast<std::uint32_t>(options.seed),
                                       .update = update,
                                       .first_sequence = batch_cut(options, loop_.world).first_sequence(0)},
                           .loss_terms = {.label_smoothing = static_cast<float>(options.label_smoothing),
                                          .z_loss = static_cast<float>(options.z_loss)},
                           .ema_decay = update > options.ema_start_update ? options.ema_decay : 0,
                           .tokens = static_cast<double>(batches_.targets(progress.data.sequences)),
                           .loss_scale = scaler_ ? scaler_->scale() : 1};
  if (spikes_) {
    const SpikeLimits most = spikes_->limits();
    scalars.most_loss = most.loss, scalars.most_norm = most.norm;
  }
  return scalars;
}

Verdict UpdatePolicy::judge(const UpdateScalars& scalars, const UpdateResult& result) {
  Progress& progress = loop_.progress;
  if (!result.finite() && !scaler_) return Verdict::refused;
  if (scaler_ && !scaler_->update(result.finite())) {
    loop_.log.say(format("overflow at loss scale {}; the scale is not lowered further", scalars.loss_scale));
    return Verdict::refused;
  }
  if (scaler_) progress.loss_scaler = scaler_->state();
  progress.data.sequences = batches_.after(progress.data.sequences);
  if (spikes_ && result.finite()) {
    spikes_->update(result.loss, result.gradient_norm);
    progress.spikes = spikes_->state();
  }
  if (!result.finite() || result.is_spike) return note_end_of_schedule(), Verdict::left_out;
  ++progress.update;
  progress.tokens += static_cast<std::uint64_t>(scalars.tokens);
  return Verdict::done;
}

void refuse_update(const LoopContext& loop, Saver& saver, const UpdateScalars& scalars, const UpdateResult& result) {
  const std::optional<NonFinite> mine = loop.model.executor().find_non_finite(scalars);
  const auto ranks = static_cast<std::size_t>(loop.world.size());
  std::array<std::int64_t, 3> words = {};  // index of the operation plus 1 (0: none), unit, parameter
  if (mine)
    words = {narrow<std::int64_t>(mine->operation + 1), narrow<std::int64_t>(mine->unit),
             narrow<std::int64_t>(mine->parameter)};
  const std::vector<std::int64_t> all = loop.world.gather(words);
  std::size_t first = ranks;
  for (std::size_t r = 0; r < ranks; ++r)
    if (all[3 * r] > 0 && (first == ranks || all[3 * r] < all[3 * first])) first = r;
  std::string where = "only the loss";
  if (first != ranks) {
    const Operation& op = loop.model.plan().update[static_cast<std::size_t>(all[3 * first]) - 1];
    if (op.kind == &kinds::embedding_forward)
      where = format("first in the output of the embedding on rank {}", first);
    else if (op.kind == &kinds::block_forward)
      where = format("first in the output of block {} in the forward pass on rank {}", op.block, first);
    else
      where = format("first in the gradient of {}, unit {}, on rank {}",
                     loop.model.model().parameters()[static_cast<std::size_t>(all[3 * first + 2])].name,
                     loop.model.layout().units()[static_cast<std::size_t>(all[3 * first + 1])].name, first);
  }
  if (saver.saving()) saver.finish();  // completes a save that has begun
  throw CollectiveError(
      format("update {} is not finite (loss {}, {} infinite or NaN elements in the gradient, {}), so the weights were not "
             "changed; lower --lr, lengthen --warmup-updates or set --clip-norm{}{}, and start again from {}",
             loop.progress.update + 1, result.loss, result.non_finite, where,
             loop.options.sharding.types.parameter == DType::f16
                 ? ", lower --fp16-init-scale, --min-loss-scale or --threshold-loss-scale, or use --bf16"
                 : "",
             loop.options.sharding.types.reduce == DType::f16 ? ", or reduce in --reduce-dtype bf16 or fp32" : "",
             saver.last_update() > 0 ? format("the last complete checkpoint, that of update {}", saver.last_update())
                                     : "the beginning"),
      0, true, exit_code::failed);
}

}  // namespace fsdp
