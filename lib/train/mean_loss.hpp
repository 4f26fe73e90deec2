// The mean loss over held-out data. Validation during training computes it, and fsdp-evaluate prints it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "fsdp/executor.hpp"

namespace fsdp {

/// Returns the mean loss over all targets of `batches`, the same on every rank. `progress` is called after each batch with the
/// number of finished batches. `stop` is called before each batch; if it returns true on any rank, all ranks return nullopt.
/// Collective over world. If a rank cannot read its data, all ranks throw the same CollectiveError after the last batch.
std::optional<double> mean_loss(Executor& executor, const ValidBatches& batches, Group& world,
                                const std::function<void(std::size_t done)>& progress = {},
                                const std::function<bool()>& stop = {});

/// Throws RunError if the loss is not finite.
void require_finite_loss(double loss);

}  // namespace fsdp
