#include "comm/mpi_calls.hpp"

#include <mpi.h>

#include "base/narrow.hpp"
#include "comm/mpi/check_mpi.hpp"

namespace fsdp::mpi_calls {

void all_gather(const float* shard, float* whole, std::size_t shard_count) {
  const int count = narrow<int>(shard_count);
  FSDP_CHECK_MPI(MPI_Allgather(shard, count, MPI_FLOAT, whole, count, MPI_FLOAT, MPI_COMM_WORLD));
}

void reduce_scatter(const float* whole, float* shard, std::size_t shard_count) {
  FSDP_CHECK_MPI(MPI_Reduce_scatter_block(whole, shard, narrow<int>(shard_count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
}

void all_reduce(float* data, std::size_t count) {
  FSDP_CHECK_MPI(MPI_Allreduce(MPI_IN_PLACE, data, narrow<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
}

}  // namespace fsdp::mpi_calls
