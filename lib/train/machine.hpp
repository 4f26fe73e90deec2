// What a rank may use of its machine.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "checkpoint/tensor_source.hpp"
#include "comm/communicator.hpp"
#include "fsdp/sharded_model.hpp"
#include "train/compute_device.hpp"

namespace fsdp {

/// This rank's part of its node.
struct CpuShare {
  int threads = 1;   // OpenMP threads of this rank
  double cores = 1;  // that they keep busy: fewer than threads where ranks share cores
};

/// Threads are `wanted` if that is not 0, else OMP_NUM_THREADS if that is set, else this rank's part of the cores that it may
/// run on (a core that n ranks may use counts 1/n), SLURM_CPUS_PER_TASK at most, without the `kept_free` ones, at least 1.
/// Collective over the ranks of a node.
CpuShare share_of_rank(Group& node, std::size_t wanted, int kept_free = 0);

/// What a rank computes with.
struct ComputingRank {
  std::unique_ptr<Communicator> node;
  CpuShare cpus;
  std::unique_ptr<Device> device;
};
/// Chooses threads and device of this rank, and sets the kernels' threads; `threads` as `wanted` in share_of_rank(), where a
/// thread of `cpu` that communicates has a core. Collective over world. Throws CollectiveError.
ComputingRank start_rank(DeviceChoice choice, std::size_t threads, Communicator& world, const CpuDeviceOptions& cpu = {});
/// The same without a device, for a plan that does not run. Collective over world.
ComputingRank start_rank_to_plan(std::size_t threads, Communicator& world, const CpuDeviceOptions& cpu = {});
/// Makes the model of `source` as `sharding` says, takes its memory on the rank's device and loads its weights into it: ready
/// for forward passes. Collective over world. Throws CollectiveError.
void load_model(std::optional<ShardedModel>& model, const TensorSource& source, const ShardingOptions& sharding,
                const ComputingRank& rank, Communicator& world, const ExecutorOptions& execution = {});

/// Stores FLOP/s of one core of this host in $XDG_CACHE_HOME/fsdp or ~/.cache/fsdp, unless a higher rate is stored: a lower one
/// means that other work was running. If it cannot be written, nothing happens.
void note_peak_per_core(DType type, double flops);
/// Deletes what is stored of this host, so that the next start measures again.
void forget_peak_per_core();

struct CorePeak {
  double flops = 0;       // of the cores of all ranks together
  bool measured = false;  // now; else it was stored on all hosts
};
/// The rate of the CPUs of all ranks as their hosts have stored it. If a host has none, all ranks multiply at once for about a
/// third of a second, and the hosts store the result. Collective over world. Throws CollectiveError if a rank lacks the
/// memory.
CorePeak peak_of_cores(DType type, const ComputingRank& rank, Communicator& world);

/// FLOP/s of the GPUs of all ranks by their datasheets (device/gpu_figures.hpp), one for each rank; none where a rank's device
/// is no GPU that is known. Collective over world.
std::optional<double> peak_of_gpus(const Device& device, DType type, Group& world);

}  // namespace fsdp
