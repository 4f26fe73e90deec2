// Ranks as a grid: shard axis x replicate axis. The ranks of one shard group are consecutive, so that they share a node where
// they can.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "comm/connection.hpp"
#include "comm/nccl.hpp"

namespace fsdp {

enum class GroupAxis { shard, replicate, world };

struct Mesh {
  std::unique_ptr<Communicator> shard;      // ranks that hold the parts of one copy of the model
  std::unique_ptr<Communicator> replicate;  // ranks that hold the same part
  Communicator* world = nullptr;            // all of them
  /// The ranks of `shard` once more, for gathers that run while something is reduced; null where they never do.
  std::unique_ptr<Communicator> gather = nullptr;
  Communicator& along(GroupAxis axis) const;

  /// What moves memory of a device: the groups themselves where they reach it, else those of use_device().
  Collectives& data_along(GroupAxis axis) const;
  Collectives& data_of_gathers() const;
  /// Makes the groups ready for memory of `device`, which outlives the mesh. GPUs' memory goes by NCCL where options.kind is
  /// "nccl", or is "auto" and every rank has a GPU of its own; else through memory of the host. Collective over world; throws
  /// CollectiveError where NCCL, or its order of sums, is asked for and cannot be had.
  void use_device(Device& device, const CommOptions& options = {});

  /// "NCCL 2.28.9, sums in canonical order", for a GPU's memory; empty where the groups themselves reach the memory.
  std::string data_description = {};
  /// What NCCL's communicators share; null without NCCL. It outlives those in `data`.
  std::unique_ptr<NcclGroups> nccl = nullptr;
  /// By axis, and of `gather`, where the host does not reach the memory.
  std::array<std::unique_ptr<Collectives>, 4> data = {};
};

/// World rank r is rank r % shard_size of shard group r / shard_size, and rank r / shard_size of its replicate group.
/// Collective over world, which must outlive the mesh; shard_size * replicate_size must be its size.
Mesh make_mesh(Communicator& world, int shard_size, int replicate_size);

}  // namespace fsdp
