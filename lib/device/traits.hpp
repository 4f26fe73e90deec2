// What the sizes of a plan depend on, of a device that need not be there: so a plan for a GPU can be printed on a machine
// without one.
#pragma once

#include <cstddef>

#include "device/device.hpp"

namespace fsdp {

/// Into how many rows kernels cut work that can be cut anywhere: few for the threads of a CPU, which are quickest over long
/// runs of memory, and many for a GPU, where each is a block of threads.
struct Grain {
  /// What a launch should have if its work allows it.
  std::size_t rows;
  /// Sums over the rows of a matrix are made in at most so many partitions, each of at least so many of its rows; then they are
  /// added up by a number of columns at a time that lies between these two.
  std::size_t partitions, partition_rows;
  std::size_t least_columns, most_columns;
  /// Blocks of 4,096 squares that a row adds up.
  std::size_t square_blocks;
  /// Whether the gradient of an embedding is made by tokens, or by columns.
  bool row_for_each_token;
};

/// For GPUs as many rows as give each multiprocessor two blocks: one of 2025 has at most 188 of them (RTX PRO 6000; an H100 has
/// 132). A batch of 4,096 rows makes 512 partitions, and 8 columns are the 32 bytes of a row that a GPU reads at least.
constexpr Grain grain_of(DeviceKind kind) {
  return kind == DeviceKind::cpu ? Grain{1, 32, 16, 512, 512, 8, false} : Grain{2 * 188, 512, 8, 1, 8, 2, true};
}

struct DeviceTraits {
  DeviceKind kind = DeviceKind::cpu;
  /// On a CPU: threads of a rank, of which each has scratch of its own.
  std::size_t threads = 1;
  /// The head makes at most so many bytes of logits at a time, counted as fp32, but at least 64 rows. Each piece adds to the
  /// gradient of the whole projection once more, so few large ones are better.
  std::size_t logits_bytes = std::size_t{256} << 20;
  /// It multiplies at most so many columns of them at a time, about: on a CPU what one product makes is in cache when the next
  /// one uses it.
  std::size_t logits_columns = 4096;
  /// What the library of matrix products works in, where that is memory of its own: 0 on a CPU, where it depends on the
  /// products; see kernels::gemm_workspace_bytes().
  std::size_t gemm_bytes = 0;
  /// An allowance for what driver, libraries and NCCL's channels take on the device, beside all that a plan knows.
  std::size_t context_bytes = 0;

  bool operator==(const DeviceTraits&) const = default;
};

inline DeviceTraits cpu_traits(std::size_t threads) { return {.threads = threads}; }

/// Of a GPU of NVIDIA's. cuBLASLt gets 32 MiB, which NVIDIA recommends for Hopper (cuBLAS documentation, "cublasSetWorkspace").
/// The 1.5 GiB for the context (about 0.5), loaded kernels and NCCL are a guess on the safe side, and have not been measured.
inline DeviceTraits cuda_traits() {
  return {.kind = DeviceKind::cuda,
          .threads = 0,
          .logits_bytes = std::size_t{2} << 30,
          .logits_columns = static_cast<std::size_t>(-1),
          .gemm_bytes = std::size_t{32} << 20,
          .context_bytes = std::size_t{3} << 29};
}

}  // namespace fsdp
