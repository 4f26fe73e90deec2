// The plan of the chosen strategy, written out: units with their tensors and shards, buffers and operations with all that is
// computed from them. `fsdp-plan --json --explain` prints it (docs/sharding.md, "The plan as JSON"), and fsdp-report draws it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "fsdp-plan/plan_table.hpp"
#include "plan/kind.hpp"

namespace fsdp {

struct ExplainedPlan {
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;
    std::uint64_t offset = 0, elements = 0;  // in the unit's flat buffer
  };
  /// A part of a tensor in a shard: elements `begin` to `end` of the tensor are stored from element `at` of the shard.
  struct Part {
    std::string tensor;
    std::uint64_t begin = 0, end = 0, at = 0;
  };
  struct Unit {
    std::string name;
    bool trained = true;
    std::uint64_t shards = 1, elements = 0, padded = 0, of_a_rank = 0;
    std::uint64_t parameter_bytes = 0, fp32_copy_bytes = 0, gradient_bytes = 0, optimizer_state_bytes = 0;  // of a rank
    std::vector<Tensor> tensors;                                                                            // by offset
    std::vector<std::vector<Part>> shard_slices;                                                            // by shard
  };
  struct Buffer {
    std::string name, role;
    std::uint64_t bytes = 0;
    bool on_host = false, whole_run = false;
  };
  struct Operation {
    std::string title, kind, label, stream;
    UpdatePart part = UpdatePart::other;
    int micro_batch = 0, unit = -1, block = -1;
    double drawn_time = 0;
    std::vector<BufferId> reads, writes;
    std::vector<int> waits;                          // operations before this one
    std::uint64_t activations = 0, moved_bytes = 0;  // moved_bytes: only of a collective
    double begin_ms = 0, end_ms = 0;                 // if is_predicted
  };

  std::filesystem::path path;  // of the options that the plan is made from, for messages
  std::uint64_t nodes = 1, ranks_per_node = 1;
  std::vector<PlanRow> strategies;
  PlanRow chosen;
  bool recomputing = false, is_predicted = false;
  std::uint64_t micro_batches = 1;  // of an update; `operations` have at most two
  std::vector<Unit> units;
  std::vector<Buffer> buffers;
  std::vector<Operation> operations;
};

/// Makes the plan of the chosen strategy, with recomputation of activations if the options request it.
ExplainedPlan explained_plan(const PlanTable& table);

/// Returns the units, buffers and operations; operations have their times if these are predicted.
nlohmann::json to_json(const ExplainedPlan& plan);

}  // namespace fsdp
