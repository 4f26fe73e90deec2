// The device properties that the sizes in a plan depend on. The device need not exist, so a plan for a GPU can be printed on a
// machine without one.
#pragma once

#include <cstddef>

#include "device/device.hpp"

namespace fsdp {

/// Into how many rows kernels cut work that can be cut anywhere: few for the threads of a CPU, which are quickest over long
/// runs of memory, and many for a GPU, where each is a block of threads.
struct Grain {
  /// The preferred number of rows of a launch.
  std::size_t rows;
  /// Sums over the rows of a matrix use at most `partitions` partitions of at least `partition_rows` rows each. The partitions
  /// are then added up in groups of columns between these two sizes.
  std::size_t partitions, partition_rows;
  std::size_t least_columns, most_columns;
  /// Blocks of 4,096 squares that a row adds up.
  std::size_t square_blocks;
  /// True: the gradient of an embedding is computed by tokens; false: by columns.
  bool row_for_each_token;
};

/// For GPUs: enough rows to give each multiprocessor two blocks. GPUs of 2025 have up to 188 multiprocessors (RTX PRO 6000; an
/// H100 has 132). A batch of 4,096 rows makes 512 partitions. 8 columns are 32 bytes, the smallest read of a GPU.
constexpr Grain grain_of(DeviceKind kind) {
  return is_host(kind) ? Grain{1, 32, 16, 512, 512, 8, false} : Grain{2 * 188, 512, 8, 1, 8, 2, true};
}

struct DeviceTraits {
  DeviceKind kind = DeviceKind::cpu;
  /// On a CPU: the number of threads of a rank. Each has its own scratch.
  std::size_t threads = 1;
  /// The largest size of the logits that the head computes at a time, counted as fp32; at least 64 rows. Each piece adds to the
  /// gradient of the whole projection again, so a few large pieces are better.
  std::size_t logits_bytes = std::size_t{256} << 20;
  /// The approximate number of columns of logits in one matrix product. On a CPU, the output is then still in cache when the
  /// next product reads it.
  std::size_t logits_columns = 4096;
  /// The workspace of the matrix library, if it needs separate memory. 0 on a CPU, because it depends on the products there:
  /// see kernels::gemm_workspace_bytes().
  std::size_t gemm_bytes = 0;
  /// An allowance for device memory that is not in the plan: driver, libraries and NCCL's channels.
  std::size_t context_bytes = 0;

  bool operator==(const DeviceTraits&) const = default;
};

inline DeviceTraits cpu_traits(std::size_t threads) { return {.threads = threads}; }

/// For NVIDIA GPUs. cuBLASLt gets 32 MiB, which NVIDIA recommends for Hopper (cuBLAS documentation, "cublasSetWorkspace"). The
/// 1.5 GiB for the context (about 0.5), loaded kernels and NCCL are a conservative guess, and have not been measured.
inline DeviceTraits cuda_traits() {
  return {.kind = DeviceKind::cuda,
          .threads = 0,
          .logits_bytes = std::size_t{2} << 30,
          .logits_columns = static_cast<std::size_t>(-1),
          .gemm_bytes = std::size_t{32} << 20,
          .context_bytes = std::size_t{3} << 29};
}

}  // namespace fsdp
