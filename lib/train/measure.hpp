// Measurements that several programs make: how long work of a stream takes, and how fast a device multiplies.
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

/// The upper one of two in the middle. There must be one at least.
double median(std::vector<double> values);

/// Seconds of each call of `work`, which gives work to the stream, by the stream's own marks: of at least 3 calls, that
/// together fill about `seconds`, after one that does not count. The stream must be idle.
std::vector<double> time_calls(Stream& stream, double seconds, const std::function<void()>& work);

/// FLOP/s of this rank for out[m,n] = op(a) op(b) in numbers of `type`, while all ranks of `group` run it at once for about
/// `seconds`. A rank without the memory fails all. Collective over group.
double product_rate(DType type, Device& device, Stream& stream, Group& group, kernels::Trans trans_a, kernels::Trans trans_b,
                    std::size_t m, std::size_t n, std::size_t k, double seconds);

/// Batches of random tokens, the same in each update, others on each rank.
BatchReader random_batches(BatchShape shape, std::size_t vocabulary, int rank);

}  // namespace fsdp
