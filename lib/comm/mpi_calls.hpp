// The MPI library's own collectives over all processes of the job. Only `fsdp-bench collectives` uses them, for comparison.
// They block, add in MPI's own order, and need an MpiSession.
#pragma once

#include <cstddef>

namespace fsdp::mpi_calls {

/// Counts are in elements and below 2^31; `whole` has (number of ranks) * shard_count elements. Collective over the job.
void all_gather(const float* shard, float* whole, std::size_t shard_count);
void reduce_scatter(const float* whole, float* shard, std::size_t shard_count);
void all_reduce(float* data, std::size_t count);

}  // namespace fsdp::mpi_calls
