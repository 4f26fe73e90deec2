// The mean loss over held-out data: training validates with it, and fsdp-evaluate prints it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "fsdp/executor.hpp"

namespace fsdp {

/// Mean loss over all targets of `batches`, the same on every rank. Collective over world: where a rank cannot read its data,
/// all throw the same CollectiveError, in the end. `progress` is called after each batch, with how many are done. `stop` is
/// asked before each batch: nothing is returned where a rank says yes.
std::optional<double> mean_loss(Executor& executor, const ValidBatches& batches, Group& world,
                                const std::function<void(std::size_t done)>& progress = {},
                                const std::function<bool()>& stop = {});

/// Throws RunError if it is not: who evaluates a model wants to know that it is broken.
void require_finite_loss(double loss);

}  // namespace fsdp
