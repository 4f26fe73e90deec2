// A model, its layout over the ranks, the plan of its steps and, after allocate(), the executor. Training, evaluation,
// generation and benchmarks use this class.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/mesh.hpp"
#include "device/device.hpp"
#include "nn/transformer.hpp"
#include "plan/sharding.hpp"
#include "run/executor.hpp"

namespace fsdp {

/// Queues the collective of an operation on `stream`. It works on `whole`, which has collective_of(op)->buffer_bytes() bytes,
/// and not on the operation's own buffers; this rank's part of a gather or scatter is `mine`. Collective over the operation's
/// group.
void queue_collective(const Operation& op, const Mesh& mesh, std::byte* whole, std::byte* mine, Stream& stream);

class ShardedModel {
 public:
  /// Computes layout and plan for the model's device, which need not exist. Allocates nothing. Collective over world, which
  /// must outlive this object. Throws UserError.
  ShardedModel(std::shared_ptr<const Model> model, const ShardingOptions& options, Communicator& world);
  ShardedModel(TransformerConfig config, const ShardingOptions& options, Communicator& world,
               const DeviceTraits& device = kernels::traits_of_cpu());
  ShardedModel(const ShardedModel&) = delete;

  /// Allocates all memory of the run. Collective over world. All ranks throw CollectiveError if one of them has too little
  /// memory, or if the kernels of one of them have more threads (kernels::threads()) than the model was made for.
  /// `comm` selects how GPUs communicate (Mesh::use_device).
  Executor& allocate(Device& device, ExecutorOptions options = {}, const CommOptions& comm = {});
  /// Requires allocate().
  Executor& executor() { return *executor_; }

  const Model& model() const { return *model_; }
  /// Requires that model() is a transformer.
  const Transformer& transformer() const;
  const Layout& layout() const { return planned_.layout; }
  const Plan& plan() const { return planned_.plan; }
  const Mesh& mesh() const { return mesh_; }
  /// The bytes per second that a node sent in the largest collective of the plan between nodes, measured once by allocate(); 0
  /// if no device backend names its network, or nodes differ.
  double network_rate() const { return network_rate_; }
  /// The options that are allowed but costly.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// The checksum that use_gemm_algorithms() returned; empty if no file was given.
  const std::string& gemm_algorithms() const { return gemm_algorithms_; }
  const Placement& placement() const { return placement_; }
  /// This rank's index on the shard axis.
  int shard() const { return mesh_.shard().rank(); }

 private:
  ShardingOptions options_;
  const Placement& placement_;
  Communicator& world_;
  std::shared_ptr<const Model> model_;
  const Transformer* transformer_;  // the same object as model_; null if that is no transformer
  Mesh mesh_;
  std::vector<std::string> warnings_;
  ShardedPlan planned_;
  std::optional<Executor> executor_;
  std::string gemm_algorithms_;
  double network_rate_ = 0;
};

}  // namespace fsdp
