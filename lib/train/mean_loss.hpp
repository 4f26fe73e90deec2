// What training validates with and fsdp-evaluate evaluates.
#pragma once

#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "fsdp/executor.hpp"

namespace fsdp {

/// Mean loss over all targets of `batches`, the same on every rank. Collective over world: where a rank cannot read its data,
/// all throw the same CollectiveError, in the end.
double mean_loss(Executor& executor, const ValidBatches& batches, Communicator& world, Stream& stream);

}  // namespace fsdp
