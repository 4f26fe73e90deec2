// Functions shared by several measurements of fsdp-bench.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdp-bench/bench.hpp"
#include "machine/measure.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

/// Returns a rate as "512 GFLOP/s" for a CPU, or as "512.0 TFLOP/s" for a GPU.
std::string format_rate(double flops, DeviceKind kind);
/// Returns the share of the peak rate, "71 %"; "-" if the peak is unknown.
std::string format_share(double flops, std::optional<double> peak);

/// Returns the number of tokens in an update with micro-batches of this shape, over all ranks.
double tokens_of_update(const ShardingOptions& sharding, BatchShape batch, const Group& world);
/// Returns the seconds of one update by this rank's clock, from a barrier before it to a barrier after it. Afterwards the times
/// that the executor has recorded cover only this update. Collective over world.
double time_update(Executor& executor, const BatchReader& batches, std::uint64_t update, double tokens, Communicator& world);

}  // namespace fsdp
