// The properties of a device that determine sizes in a memory plan. The device need not exist, so that a plan for a GPU can be
// printed on a machine without GPUs.
#pragma once

#include <cstddef>

#include "device/device.hpp"

namespace fsdp {

/// How finely kernels divide their work. A "row" is one piece of a kernel's work: a CPU thread does several rows, and a GPU
/// does each row in a block of threads. A CPU is fastest with few long rows, a GPU needs many.
struct Grain {
  /// The preferred number of rows, for work that can be divided anywhere.
  std::size_t rows;
  /// For sums over the rows of a matrix: the matrix is cut into at most `partitions` partitions of at least `partition_rows`
  /// rows. The partitions' sums are then added up in groups of `least_columns` to `most_columns` columns.
  std::size_t partitions, partition_rows;
  std::size_t least_columns, most_columns;
  /// For sums of squares: the number of blocks of 4,096 squares that make a "row".
  std::size_t square_blocks;
  /// For the gradient of an embedding: true if a row is a token, false if a row is a range of columns.
  bool row_for_each_token;
};

/// A GPU gets two rows for each of 188 multiprocessors. No GPU of 2025 has more (RTX PRO 6000: 188, H100: 132). A batch of
/// 4,096 rows makes 512 partitions. 8 columns are 32 bytes, the smallest read of a GPU.
constexpr Grain grain_of(DeviceKind kind) {
  return is_host(kind) ? Grain{1, 32, 16, 512, 512, 8, false} : Grain{2 * 188, 512, 8, 1, 8, 2, true};
}

struct DeviceTraits {
  DeviceKind kind = DeviceKind::cpu;
  /// On a CPU: the number of threads of a rank. Each thread has its own scratch memory.
  std::size_t threads = 1;
  /// The number of ranks of the job. Only a loss that sees the rows of all ranks depends on it.
  std::size_t ranks = 1;
  /// The size in bytes, counted in fp32, of the pieces in which the LM head computes the logits, and recomputed blocks compute
  /// their MLP. A piece has at least `piece_rows` rows. The backward pass of each piece updates whole gradients of weights, so
  /// a few large pieces are better.
  std::size_t logits_bytes = std::size_t{256} << 20, piece_rows = 64;
  /// The approximate number of columns (tokens of the vocabulary) of logits in one matrix product. On a CPU, these logits are
  /// then still in cache when they are read.
  std::size_t logits_columns = 4096;
  /// The distance between rows of logits is a multiple of this number of elements. Kernels of tensor cores need rows that begin
  /// at multiples of 16 bytes; for other rows, such as those of GPT-2's 50,257 tokens, cuBLASLt has only slow kernels.
  std::size_t logits_alignment = 1;
  /// The size of the BLAS library's workspace on a GPU. 0 on a CPU, where the workspace depends on the matrix products: see
  /// kernels::gemm_workspace_bytes().
  std::size_t gemm_bytes = 0;
  /// The largest head size for which cuDNN computes attention; 0: our kernels compute all attention.
  std::size_t cudnn_head_size = 0;
  /// True if matrix products add biases, and compute gradients of biases and GELU, in the same pass.
  bool fuses_biases = false;
  /// An estimate of device memory outside the plan: driver, libraries and NCCL's channels.
  std::size_t context_bytes = 0;

  bool operator==(const DeviceTraits&) const = default;
};

inline DeviceTraits cpu_traits(std::size_t threads) { return {.threads = threads}; }

/// For NVIDIA GPUs. cuBLASLt gets 32 MiB, as NVIDIA recommends for Hopper (cuBLAS documentation, "cublasSetWorkspace").
/// context_bytes is 1.5 GiB. On an H200, the CUDA context, kernels and cuBLASLt took 1.15 GiB; the rest is for NCCL's
/// connections, which were not measured.
inline DeviceTraits cuda_traits() {
  return {.kind = DeviceKind::cuda,
          .threads = 0,
          .logits_bytes = std::size_t{2} << 30,
          .logits_columns = static_cast<std::size_t>(-1),
          .logits_alignment = 64,
          .gemm_bytes = std::size_t{32} << 20,
          .context_bytes = std::size_t{3} << 29};
}

}  // namespace fsdp
