// What a rank uses of its machine (threads, cores and a device), and how fast the cores and the device are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/tensor_source.hpp"
#include "comm/communicator.hpp"
#include "machine/compute_device.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

/// Returns the value of an environment variable; 0 if it is not a number above 0.
std::size_t number_in_environment(const char* name);
/// Returns 1 for each processor on which the calling thread may run, and 0 for all others.
std::vector<std::int64_t> allowed_processors();

/// This rank's share of its node's cores.
struct CpuShare {
  int threads = 1;   // OpenMP threads of this rank
  double cores = 1;  // cores that the threads keep busy; fewer than `threads` if ranks share cores
};

/// The number of threads is `wanted` if that is not 0, else OMP_NUM_THREADS if that is set. Otherwise it is max(1, min(share,
/// SLURM_CPUS_PER_TASK) - `kept_free`), where `share` is the number of cores that this rank may run on. In `share`, a core that
/// n ranks may use counts as 1/n. Collective over the ranks of a node.
CpuShare share_of_rank(Group& node, std::size_t wanted, int kept_free = 0);

/// The communicator of a rank's node, its share of the cores, and its device.
struct ComputingRank {
  std::unique_ptr<Communicator> node;
  CpuShare cpus;
  std::unique_ptr<Device> device;
};
/// Chooses this rank's threads and device, and sets the kernels' number of threads. `threads` is passed to share_of_rank() as
/// `wanted`. If `cpu` has a communication thread, one core is kept free for it. Collective over world. Throws CollectiveError.
ComputingRank start_rank(DeviceChoice choice, std::size_t threads, Communicator& world, const CpuDeviceOptions& cpu = {});
/// As start_rank(), but without a device, for a plan that is only printed. Collective over world.
ComputingRank start_rank_to_plan(std::size_t threads, Communicator& world, const CpuDeviceOptions& cpu = {});
/// Returns the free memory of a rank, the minimum over all ranks. On CPUs, the ranks of a node have equal parts of nine tenths
/// of its free memory, because other processes use it, too. Collective over world.
std::size_t free_memory_of_a_rank(const ComputingRank& rank, Group& world);
/// Makes the model of `source` with `sharding` and, if `base_type` is set, matrices in the blocks of this type instead of that
/// of `source`; allocates it on the rank's device and loads its weights, so that it is ready for forward passes. `progress` is
/// that of this rank's part. Collective over world. Throws CollectiveError.
void load_model(std::optional<ShardedModel>& model, const TensorSource& source, const ShardingOptions& sharding,
                std::optional<kernels::Quantization> base_type, const ComputingRank& rank, Communicator& world,
                const ExecutorOptions& execution = {}, const CommOptions& comm = {}, const ByteProgress& progress = nullptr);

/// Stores `flops`, the FLOP/s of one core of this host, in a file in $XDG_CACHE_HOME/fsdp or ~/.cache/fsdp. If the file has a
/// higher rate, keeps that rate, because `flops` was then measured while other work was running. Write errors are ignored.
void note_peak_per_core(DType type, double flops);
/// Deletes the stored rates of this host, so that the next start measures again.
void forget_peak_per_core();

struct CorePeak {
  double flops = 0;       // FLOP/s, summed over the cores of all ranks
  bool measured = false;  // true: measured by this call; false: read from the rates stored on the hosts
};
/// The total FLOP/s of the CPUs of all ranks, from the rates stored on their hosts. If a host has no stored rate, all ranks run
/// matrix products at the same time for about a third of a second, and the hosts store the result. Collective over world.
/// Throws CollectiveError if a rank lacks the memory for that.
CorePeak peak_of_cores(DType type, const ComputingRank& rank, Communicator& world);

/// The sum of FLOP/s of the ranks' GPUs by their datasheets (device/gpu_figures.hpp), counting one GPU per rank. Empty if a
/// rank's device is not a known GPU. Collective over world.
std::optional<double> peak_of_gpus(const Device& device, DType type, Group& world);

}  // namespace fsdp
