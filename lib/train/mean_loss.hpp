// What training validates with and fsdp-evaluate evaluates.
#pragma once

#include <cstddef>
#include <functional>

#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "fsdp/executor.hpp"

namespace fsdp {

/// Mean loss over all targets of `batches`, the same on every rank. Collective over world: where a rank cannot read its data,
/// all throw the same CollectiveError, in the end. `progress` is called after each batch, with how many are done.
double mean_loss(Executor& executor, const ValidBatches& batches, Group& world,
                 const std::function<void(std::size_t done)>& progress = {});

}  // namespace fsdp
