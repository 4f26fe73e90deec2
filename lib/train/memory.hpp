// What a rank of a training run holds, in bytes: a pure account of plan, batch and options, before anything is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "fsdp/sharded_model.hpp"
#include "nn/transformer.hpp"
#include "train/options.hpp"

namespace fsdp {

struct MemoryAccount {
  std::array<std::size_t, role_count> by_role{};  // the plan's buffers: they add up to its peak
  std::size_t of(BufferRole role) const { return by_role[static_cast<std::size_t>(role)]; }

  std::size_t plan = 0;     // the peak of the plan
  std::size_t staging = 0;  // of the communicators
  std::size_t gemm = 0;     // about what matrix products take beside the plan
  std::size_t context = 0;  // an allowance for what driver and libraries take of a GPU

  // The host has these, whatever the device:
  std::size_t offloaded = 0;     // what the plan keeps there
  std::size_t through_host = 0;  // what a GPU's collectives are copied to, where they go through the host
  std::size_t batch = 0;         // tokens of an update, and of the next one that is read meanwhile
  std::size_t snapshot = 0;      // what a save that goes on writes from
  std::size_t trace = 0;

  DeviceKind device = DeviceKind::cpu;
  const DeviceBackend* backend = nullptr;  // what moves the memory of a GPU
  /// What counts against the memory of the device that computes. If that is a CPU, the host's parts count, too.
  std::size_t total() const { return plan + staging + gemm + context + (is_host(device) ? on_host() : 0); }
  std::size_t on_host() const { return offloaded + through_host + batch + snapshot + trace; }
};

/// What communicators take of a GPU where the row's backend connects the ranks of the mesh. If memory of the host is asked for,
/// it is there.
std::size_t staging_on_gpu(const CommOptions& comm, MeshShape mesh);
/// What collectives of a GPU's memory are copied to, where they go through the host: of each group what its largest one moves.
std::size_t staging_through_host(const Plan& plan, MeshShape mesh);
/// `staging` is the communicators' own number, or staging_on_gpu(); the model knows its device.
MemoryAccount memory_account(const TrainOptions& options, const Transformer& model, const Layout& layout, const Plan& plan,
                             int rank, int world_size, std::size_t staging);
/// Of a model whose ranks are connected, `node` being those of this rank's node.
MemoryAccount memory_account(const TrainOptions& options, const ShardedModel& sharded, const Communicator& world,
                             const Communicator& node);
/// The parts beside the plan, as a line, or as three for a GPU.
std::string describe_beside_plan(const MemoryAccount& memory);

/// About how much memory matrix products of this type take beside the plan.
std::size_t gemm_bytes(const Transformer& model, BatchShape batch, DType type);

}  // namespace fsdp
