// The mean loss over held-out data. Validation during training computes it, and fsdp-evaluate prints it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "checkpoint/checkpoint.hpp"
#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "run/executor.hpp"

namespace fsdp {

/// Returns the mean loss over all targets of `batches`, the same on every rank. `progress` is called after each batch with the
/// number of finished batches. `stop` is called before each batch; if it returns true on any rank, all ranks return nullopt.
/// Collective over world. If a rank cannot read its data, all ranks throw the same CollectiveError after the last batch.
std::optional<double> mean_loss(Executor& executor, const ValidBatches& batches, Group& world,
                                const std::function<void(std::size_t done)>& progress = {},
                                const std::function<bool()>& stop = {});

/// Notes the loss of a validation. Returns true if it is the smallest so far, which a loss that is not finite is not.
bool note_validation(std::optional<Validations>& all, std::uint64_t update, double loss);

/// The loss of all ranks from the sums of each. Collective over world.
double all_ranks(LossSum sum, Group& world);

/// Throws RunError if the loss is not finite.
void require_finite_loss(double loss);

}  // namespace fsdp
