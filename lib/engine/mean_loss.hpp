// The mean loss over held-out data. Validation during training computes it, and fsdp-evaluate prints it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "checkpoint/checkpoint.hpp"
#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "run/executor.hpp"

namespace fsdp {

/// Means over all targets. TRL's names of the last two are mean_token_accuracy and entropy.
struct MeanLoss {
  double loss = 0;
  double accuracy = 0;  // the share of targets that the model thinks likeliest; several logits may be the largest
  double entropy = 0;   // of the predictions, in nats
};

/// Receives the targets and losses of a batch of this rank; targets that do not count are below 0. Collective if it is used.
using TakeLosses = std::function<void(std::span<const std::int32_t> targets, std::span<const float> losses)>;

/// Returns the means over all targets of `batches`, the same on every rank. `progress` is called after each batch with the
/// number of finished batches, and `take` with its losses. `stop` is called before each batch; if it returns true on any rank,
/// all ranks return nullopt. Collective over world. If a rank cannot read its data, all ranks throw the same CollectiveError
/// after the last batch.
std::optional<MeanLoss> mean_loss(Executor& executor, const ValidBatches& batches, Group& world,
                                  const std::function<void(std::size_t done)>& progress = {},
                                  const std::function<bool()>& stop = {}, const TakeLosses& take = {});

/// Notes the loss of a validation. Returns true if it is the smallest so far, which a loss that is not finite is not.
bool note_validation(std::optional<Validations>& all, std::uint64_t update, double loss);

/// The sums of all ranks. Collective over world.
LossSum all_ranks(const LossSum& sum, Group& world);

/// Throws RunError if the loss is not finite.
void require_finite_loss(double loss);

}  // namespace fsdp
