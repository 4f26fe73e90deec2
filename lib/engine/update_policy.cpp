#include "engine/update_policy.hpp"

#include <array>
#include <vector>

#include "base/format.hpp"
#include "base/narrow.hpp"

namespace fsdp {

namespace {

Dropout dropout_of(const EngineOptions& options, const Model& model, int rank) {
  const TransformerConfig* const config = model.transformer_config;
  return {.residual = static_cast<float>(options.dropout),
          .attention = static_cast<float>(options.attention_dropout),
          .adapters = config && config->lora.rank > 0 ? static_cast<float>(config->lora.dropout) : 0,
          .neftune_alpha = static_cast<float>(options.neftune_alpha),
          .seed = options.sharding.optimizer.seed,
          .first_sequence = static_cast<std::uint64_t>(rank) * options.sharding.batch.B};
}

}  // namespace

UpdatePolicy::UpdatePolicy(const EngineOptions& options, const Model& model, int rank, Progress& progress)
    : options_(options), dropout_(dropout_of(options, model, rank)), progress_(progress) {
  if (options.sharding.types.parameter == DType::f16) scaler_.emplace(options.loss_scaler);
  if (options.skip_spikes > 0) spikes_.emplace(options.skip_spikes);
}

void UpdatePolicy::restore() {
  if (scaler_ && progress_.loss_scaler) scaler_->restore(*progress_.loss_scaler);
  if (spikes_ && progress_.spikes) spikes_->restore(*progress_.spikes);
  progress_.spikes = spikes_ ? std::optional(spikes_->state()) : std::nullopt;
}

UpdateScalars UpdatePolicy::next(double learning_rate, double tokens) const {
  const std::uint64_t update = progress_.update + 1;
  UpdateScalars scalars = {.update = update,
                           .learning_rate = learning_rate,
                           .clip_norm = options_.clip_norm,
                           .clip_value = options_.clip_value,
                           .state_began = progress_.optimizer_began,
                           .dropout = dropout_,
                           .loss_terms = {.label_smoothing = static_cast<float>(options_.label_smoothing),
                                          .z_loss = static_cast<float>(options_.z_loss)},
                           .ema_decay = update > options_.ema_start_update ? options_.ema_decay : 0,
                           .tokens = tokens,
                           .loss_scale = scaler_ ? scaler_->scale() : 1};
  scalars.dropout.update = update;
  if (spikes_) {
    const SpikeLimits most = spikes_->limits();
    scalars.most_loss = most.loss, scalars.most_norm = most.norm;
  }
  return scalars;
}

Verdict UpdatePolicy::judge(const UpdateResult& result, double tokens) {
  const bool goes_on = !scaler_ || scaler_->update(result.finite());
  if (!result.finite() && (!scaler_ || !goes_on)) return Verdict::refused;
  if (scaler_) progress_.loss_scaler = scaler_->state();
  if (spikes_ && result.finite()) {
    spikes_->update(result.loss, result.gradient_norm);
    progress_.spikes = spikes_->state();
  }
  if (!result.finite() || result.is_spike) return Verdict::left_out;
  ++progress_.update;
  progress_.tokens += static_cast<std::uint64_t>(tokens);
  return Verdict::done;
}

std::string describe_refused(ShardedModel& model, Group& world, const UpdateScalars& scalars, const UpdateResult& result) {
  const std::optional<NonFinite> mine = model.executor().find_non_finite(scalars);
  const auto ranks = static_cast<std::size_t>(world.size());
  std::array<std::int64_t, 3> words = {};  // index of the operation plus 1 (0: none), unit, parameter
  if (mine)
    words = {narrow<std::int64_t>(mine->operation + 1), narrow<std::int64_t>(mine->unit),
             narrow<std::int64_t>(mine->parameter)};
  const std::vector<std::int64_t> all = world.gather(words);
  std::size_t first = ranks;
  for (std::size_t r = 0; r < ranks; ++r)
    if (all[3 * r] > 0 && (first == ranks || all[3 * r] < all[3 * first])) first = r;
  std::string where = "only the loss";
  if (first != ranks) {
    const Operation& op = model.plan().update[static_cast<std::size_t>(all[3 * first]) - 1];
    const Parameter& parameter = model.model().parameters()[static_cast<std::size_t>(all[3 * first + 2])];
    if (op.kind == &kinds::embedding_forward || op.kind == &kinds::block_forward)
      where = format("first in the output of {}{} on rank {}", model.model().stage(static_cast<std::size_t>(op.stage)).name,
                     op.block >= 0 ? " in the forward pass" : "", first);
    else
      where = format("first in {} {}, unit {}, on rank {}", parameter.is_state() ? "what moves the state" : "the gradient of",
                     parameter.name, model.layout().units()[static_cast<std::size_t>(all[3 * first + 1])].name, first);
  }
  return format(
      "update {} is not finite (loss {}, {} infinite or NaN elements in the gradient, {}), so the weights were not "
      "changed",
      scalars.update, result.loss, result.non_finite, where);
}

}  // namespace fsdp
