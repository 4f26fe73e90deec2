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

/// The median; for an even number of values, the upper of the two middle values. There must be at least one value.
double median(std::vector<double> values);

/// Times `work`, which enqueues operations on the stream. Calls it once untimed, then at least 3 times and for about `seconds`
/// in total. Returns the seconds of each timed call, as measured on the stream. The stream must be idle.
std::vector<double> time_calls(Stream& stream, double seconds, const std::function<void()>& work);

/// Returns this rank's FLOP/s for out[m,n] = op(a) op(b) with elements of `type`, while all ranks of `group` compute this
/// product at the same time for about `seconds`. Collective over group: if a rank lacks the memory, all throw CollectiveError.
double product_rate(DType type, Device& device, Stream& stream, Group& group, kernels::Trans trans_a, kernels::Trans trans_b,
                    std::size_t m, std::size_t n, std::size_t k, double seconds);

/// Returns a reader of batches of random tokens. A rank gets the same batch in every update; ranks get different batches.
BatchReader random_batches(BatchShape shape, std::size_t vocabulary, int rank);

}  // namespace fsdp
