// Measurements that several programs make: the time of calls on a stream, and the rate of matrix products.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/dtype.hpp"
#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "fsdp/executor.hpp"
#include "kernels/kernels.hpp"

namespace fsdp {

/// For an even number of values, the upper of the two middle ones. There must be at least one value.
double median(std::vector<double> values);

/// Calls `work`, which enqueues work on the stream: once untimed, then at least 3 times and for about `seconds`. Returns the
/// seconds of each timed call, by the stream's own time marks. The stream must be idle.
std::vector<double> time_calls(Stream& stream, double seconds, const std::function<void()>& work);

/// Returns this rank's FLOP/s for out[m,n] = op(a) op(b) with elements of `type`, while all ranks of `group` run it at the
/// same time for about `seconds`. Collective over group: if a rank lacks the memory, all throw CollectiveError.
double product_rate(DType type, Device& device, Stream& stream, Group& group, kernels::Trans trans_a, kernels::Trans trans_b,
                    std::size_t m, std::size_t n, std::size_t k, double seconds);

/// Batches of random tokens: the same for every update, different on each rank.
BatchReader random_batches(BatchShape shape, std::size_t vocabulary, int rank);

}  // namespace fsdp
