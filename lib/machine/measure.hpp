// Measurements that several programs make: the time of calls on a stream and of collectives, the rate of matrix products and of
// files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "base/dtype.hpp"
#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "run/executor.hpp"

namespace fsdp {

/// The median; for an even number of values, the upper of the two middle values. There must be at least one value.
double median(std::vector<double> values);
double smallest(std::vector<double> values);

/// Times `work`, which enqueues operations on the stream. Calls it once untimed, then at least 3 times and for about `seconds`
/// in total. Returns the seconds of each timed call, as measured on the stream. The stream must be idle.
std::vector<double> time_calls(Stream& stream, double seconds, const std::function<void()>& work);

/// Returns this rank's FLOP/s for out[m,n] = op(a) op(b) with elements of `type`, while all ranks of `group` compute this
/// product at the same time for about `seconds`. `pick` selects the time of one product. Collective over group: if a rank lacks
/// the memory, all throw CollectiveError.
double product_rate(DType type, Device& device, Stream& stream, Group& group, kernels::Trans trans_a, kernels::Trans trans_b,
                    std::size_t m, std::size_t n, std::size_t k, double seconds, double (*pick)(std::vector<double>) = median);

/// The largest `seconds` of the ranks. Collective over group.
double slowest(Group& group, double seconds);
/// Returns the seconds of `call`, a collective, on the slowest rank: the median over `rounds` rounds of `at_once` calls, after
/// one round that does not count. The host waits for each round, because calls that go through host memory cannot be timed on
/// the stream. Collective over group.
double time_collective(Stream& stream, Group& group, std::size_t at_once, std::size_t rounds,
                       const std::function<void()>& call);

/// Returns the seconds until all ranks have finished `work`, which must not communicate. Collective over group: if `work`
/// throws on a rank, all throw CollectiveError.
double time_together(Group& group, const std::function<void()>& work);
/// Writes a file in the same way as a save: in large pieces, and without the page cache if the file system allows it.
void write_as_saves(const std::filesystem::path& path, std::span<const std::byte> bytes);

/// Returns a reader of batches of random tokens. A rank gets the same batch in every update; ranks get different batches.
BatchReader random_batches(BatchShape shape, std::size_t vocabulary, int rank);

}  // namespace fsdp
