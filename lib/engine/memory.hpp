// The memory of a rank in bytes, computed from plan, batch and options before anything is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/options.hpp"
#include "nn/model.hpp"
#include "plan/traffic.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

struct MemoryAccount {
  std::array<std::size_t, role_count> by_role{};  // the plan's buffers by role, activations at their peak; sum: `plan`
  std::size_t of(BufferRole role) const { return by_role[static_cast<std::size_t>(role)]; }

  std::size_t plan = 0;     // the plan's peak of device memory
  std::size_t staging = 0;  // staging buffers of the communicators
  std::size_t gemm = 0;     // estimated workspace of matrix products, which the plan does not contain
  std::size_t context = 0;  // allowance for the memory of driver and libraries on a GPU

  // In host memory on every kind of device:
  std::size_t offloaded = 0;     // the offloaded buffers of the plan, without those in files
  std::size_t file = 0;          // staging of state in a file
  std::size_t through_host = 0;  // staging buffers of a GPU's collectives that go through the host
  std::size_t batch = 0;         // tokens of the current update, and of the next update, which are read ahead
  std::size_t snapshot = 0;      // the copy of the state from which an asynchronous save writes
  std::size_t trace = 0;

  std::size_t on_disk = 0;  // the size of the files of the plan's offloaded buffers

  DeviceKind device = DeviceKind::cpu;
  const DeviceBackend* backend = nullptr;  // the backend of GPU collectives; null: collectives go through the host
  /// The memory of the device that computes. A CPU computes in host memory, so total() then includes on_host().
  std::size_t total() const { return plan + staging + gemm + context + (is_host(device) ? on_host() : 0); }
  std::size_t on_host() const { return offloaded + file + through_host + batch + snapshot + trace; }
};

/// The GPU memory that all communicators of the mesh use for staging, if the backend of `comm` has GPU collectives (NCCL). 0 if
/// the backend's collectives go through the host.
std::size_t staging_on_gpu(const CommOptions& comm, const Plan& plan, MeshShape mesh);
/// The host memory that stages the data of a GPU's collectives if the collectives go through the host. Each group of ranks has
/// a buffer of the size of its largest collective.
std::size_t staging_through_host(const Plan& plan, MeshShape mesh);
/// The memory of a program besides that of the plan.
struct ProgramMemory {
  bool snapshot = false;        // saves are written while training continues, from a copy of the state
  std::size_t trace_bytes = 0;  // of recorded times
};
/// The account of rank 0, which has the largest snapshot, on a cluster that need not exist.
MemoryAccount memory_account(const EngineOptions& options, const Model& model, const ShardedPlan& planned, MeshShape mesh,
                             Cluster cluster, ProgramMemory program);
/// The account of this rank of `sharded`; `node` is the communicator of this rank's node.
MemoryAccount memory_account(const EngineOptions& options, const ShardedModel& sharded, const Communicator& world,
                             const Communicator& node, ProgramMemory program);
/// Returns a plan with at most two micro-batches, and the memory of all. That is enough: all micro-batches but the last have
/// the same operations.
ShardedPlan plan_two_micro_batches(const Model& model, ShardingOptions options, MeshShape mesh,
                                   std::vector<std::string>* warnings = nullptr);

/// What a run changes to need no more memory than it may.
struct FittedPlan {
  std::shared_ptr<const Model> model;                       // the given one, or the same with smaller pieces of logits
  std::size_t recomputed_blocks = 0, offloaded_inputs = 0;  // as in PlanOptions
  MemoryAccount memory;                                     // of rank 0
  bool fits = true;
};
/// Applies options.memory_limit and options.recompute_to_fit. Recomputes as few blocks as possible. If even all of them are not
/// enough, a GPU keeps the inputs of as few blocks as possible on the host. Then the pieces of logits are as large as possible.
/// If nothing fits, returns what needs least.
FittedPlan fit_plan(std::shared_ptr<const Model> model, const EngineOptions& options, MeshShape mesh, Cluster cluster,
                    ProgramMemory program);

/// The choice of recomputed blocks and of inputs on the host, as options.
std::string describe_choice(const PlanOptions& plan);

/// Describes the memory outside the plan, in lines like "    16.0 KiB of staging for communication".
std::string describe_beside_plan(const MemoryAccount& memory);

/// The estimated workspace of matrix products of this type, outside the plan. Of user-defined layers, products of the batch's
/// rows with each matrix of parameters count.
std::size_t gemm_bytes(const Model& model, BatchShape batch, DType type);

}  // namespace fsdp
