// Which device a run computes on, and how a rank gets its own.
#pragma once

#include <memory>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "device/traits.hpp"
#include "fsdp/sharded_model.hpp"

namespace fsdp {

/// What users ask for.
enum class DeviceChoice { automatic, cpu, cuda };

/// A device of this kind, which need not be there; on a CPU with so many threads.
DeviceTraits traits_of(DeviceKind kind, int threads);

/// What `--device` comes to on this machine: `automatic` is a GPU where this process sees one. Throws UserError where GPUs are
/// asked for, or were given to the job, and none can be used.
DeviceKind choose_device(DeviceChoice choice);

/// The kind that a plan without a run is for, whatever there is on this machine: `automatic` is the CPU.
DeviceKind kind_to_plan_for(DeviceChoice choice);

/// The options as a device of this kind takes them: a CPU has the host's memory, so that nothing is offloaded.
ShardingOptions options_for(DeviceKind kind, ShardingOptions options);

/// Throws UserError if these options of CPUs are given for another kind of device.
void check_cpu_options(DeviceKind kind, const CpuDeviceOptions& cpu);

/// This rank's device. GPUs go to the ranks of a node in turn: where the launcher shows each task its own alone, that is the
/// one; where it shows all, rank r of the node takes GPU r, and ranks share GPUs if there are more of them. Collective over
/// world, of which `node` is the part on this node; throws CollectiveError if the ranks have different kinds.
std::unique_ptr<Device> make_device_of_rank(DeviceKind kind, const CpuDeviceOptions& cpu, Communicator& world,
                                            Communicator& node);

}  // namespace fsdp
