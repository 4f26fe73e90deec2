// What this process may use of its machine, and what it has used.
#pragma once

#include <cstddef>
#include <optional>

#include "comm/communicator.hpp"

namespace fsdp {

/// This rank's part of its node.
struct CpuShare {
  int threads = 1;   // OpenMP threads of this rank
  double cores = 1;  // that they keep busy: fewer than threads where ranks share cores
};

/// Threads are `wanted` if that is not 0, else OMP_NUM_THREADS if that is set, else this rank's part of the cores that it may
/// run on (a core that n ranks may use counts 1/n), at least 1. Collective over the ranks of a node.
CpuShare share_of_rank(Communicator& node, Stream& stream, std::size_t wanted);

/// FLOP/s of one core of this host as `fsdp-bench gemm` has measured and noted it ($XDG_CACHE_HOME/fsdp, or ~/.cache/fsdp);
/// none until then.
std::optional<double> noted_peak_per_core();
/// Notes it. A note that cannot be written is none: MFU stays null.
void note_peak_per_core(double flops);

/// VmHWM: the most memory that this process has had resident, in bytes.
std::size_t process_peak_bytes();

/// What processes on this machine may still take: MemAvailable of the system, or what is left below the limit of this process's
/// control group (Slurm sets one), whichever is less.
std::size_t available_memory_bytes();

/// The largest of all ranks' values. Collective.
std::size_t max_over_ranks(Communicator& comm, Stream& stream, std::size_t mine);

}  // namespace fsdp
