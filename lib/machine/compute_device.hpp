// Chooses the kind of device that a run computes on, and gives each rank its device.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.hpp"
#include "device/device.hpp"
#include "device/traits.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

/// The value of --device.
enum class DeviceChoice { automatic, cpu, cuda };

/// The traits of a device of this kind, even if this machine has no such device. A CPU device has `threads` threads.
DeviceTraits traits_of(DeviceKind kind, int threads);

/// Resolves --device on this machine: `automatic` is a GPU if this process can use one, else the CPU. If no GPU can be used,
/// throws UserError if `choice` is `cuda`, and also if `choice` is `automatic` but the launcher gave the job GPUs.
DeviceKind choose_device(DeviceChoice choice);

/// The kind of device for a plan that is only printed. It does not depend on the devices of this machine; `automatic` is the
/// CPU.
DeviceKind kind_to_plan_for(DeviceChoice choice);

/// The value of --attention-backend.
enum class AttentionBackend { own, cudnn, automatic };

/// The attention of a run.
struct AttentionChoice {
  std::size_t cudnn_head_size = 0;  // for DeviceTraits
  std::string library = {};         // "cuDNN 9.26.0"; empty: our kernels compute attention
  std::string why = {};             // why our kernels compute it although `wanted` is another backend
};

/// Resolves --attention-backend for a plan of a model. `dropout` is that of attention's probabilities. cuDNN is assumed to
/// exist.
AttentionChoice plan_attention(AttentionBackend wanted, const TransformerConfig& config, const ShardingOptions& sharding,
                               double dropout, DeviceKind kind);

/// Resolves --attention-backend on the rank's device. Collective over world. With `automatic`, our kernels compute the
/// attention if cuDNN is missing or refuses the model's shapes. Throws CollectiveError if `wanted` is `cudnn` and cuDNN cannot
/// be loaded, and if ranks have different versions of cuDNN, or cuDNN refuses only some of them.
AttentionChoice choose_attention(AttentionBackend wanted, const TransformerConfig& config, const ShardingOptions& sharding,
                                 double dropout, Device& device, Communicator& world);

/// Describes the difference between the libraries (AttentionChoice::library) that computed attention on a GPU before a run was
/// stopped and after; empty if they are equal.
std::string describe_changed_attention(const std::string& before, const std::string& now);

/// Throws UserError if --bias-gelu-fusion changes nothing for this model, type of weights and device.
void check_bias_gelu_fusion(const TransformerConfig& config, DType type, DeviceKind kind);

/// Returns true if something is offloaded to the host's memory, which has no effect on a CPU.
bool offloads_to_host(const PlanOptions& plan);
/// Returns `options` for this kind of device. On a CPU, offloading is turned off, because a CPU computes in host memory.
ShardingOptions options_for(DeviceKind kind, ShardingOptions options);

/// Throws UserError if options that apply only to CPUs are given for another kind of device.
void check_cpu_options(DeviceKind kind, const CpuDeviceOptions& cpu);

/// Makes this rank's device: of the GPUs that all ranks of the node see, the one that choose_gpus() gives it
/// (machine/node_places.hpp). If the launcher shows each task only its own GPU, the rank takes that GPU. If there are more
/// ranks than GPUs, ranks share GPUs. Collective over world; `node` is the communicator of world's ranks on this node. Throws
/// CollectiveError if the ranks have different kinds of devices.
std::unique_ptr<Device> make_device_of_rank(DeviceKind kind, const CpuDeviceOptions& cpu, Communicator& world,
                                            Communicator& node);

}  // namespace fsdp
