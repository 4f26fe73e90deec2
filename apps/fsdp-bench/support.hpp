// What several measurements of fsdp-bench have in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-bench/bench.hpp"
#include "fsdp/sharded_model.hpp"
#include "train/measure.hpp"

namespace fsdp {

/// "512 GFLOP/s" of a CPU, "512.0 TFLOP/s" of a GPU.
std::string format_rate(double flops, DeviceKind kind);
/// "71 %"; "-" where the peak is not known.
std::string format_share(double flops, std::optional<double> peak);

/// Tokens of an update with micro-batches of this shape, of all ranks together.
double tokens_of_update(const ShardingOptions& sharding, BatchShape batch, const Group& world);
/// Seconds of one update, by the clock of this rank, from when all ranks are there until all are done; the executor's own times
/// are of this update alone afterwards. Collective over world.
double time_update(Executor& executor, const BatchReader& batches, std::uint64_t update, double tokens, Communicator& world);

}  // namespace fsdp
