// Reads the JSON of an explained plan (docs/sharding.md, "The plan as JSON") for drawing. What is read is consistent: indices
// are within their lists, parts are within their wholes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "plan/kind.hpp"

namespace fsdp {

struct PlanFile {
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> shape;
    std::uint64_t offset = 0, elements = 0;  // in the unit's flat buffer
  };
  /// A part of a tensor in a shard.
  struct Part {
    std::string tensor;
    std::uint64_t begin = 0, end = 0;
  };
  struct Unit {
    std::string name;
    std::uint64_t shards = 1, elements = 0, padded = 0, of_a_rank = 0;
    std::uint64_t parameter_bytes = 0, fp32_copy_bytes = 0, gradient_bytes = 0, optimizer_state_bytes = 0;  // of a rank
    std::vector<Tensor> tensors;                                                                            // by offset
    std::vector<std::vector<Part>> parts;                                                                   // by shard
  };
  struct Buffer {
    std::string name, role;
    std::uint64_t bytes = 0;
    bool on_host = false, whole_run = false;
  };
  struct Operation {
    std::string title, kind, label, stream;
    UpdatePart part = UpdatePart::other;
    int unit = -1;
    double drawn_time = 0;
    std::vector<std::size_t> reads, writes;  // buffers
    std::vector<std::size_t> waits;          // operations before this one
    std::uint64_t activations = 0, moved_bytes = 0;
  };
  /// Numbers of parameters, gradients and optimizer state, in this order.
  template <class T>
  using States = std::array<T, 3>;
  /// A strategy, which may be another one than the plan's.
  struct Strategy {
    std::string name;
    std::uint64_t shard = 1, replicate = 1;
    States<bool> sharded = {}, kept_whole = {};
    States<std::uint64_t> bytes = {};
    std::uint64_t slot_bytes = 0, within_node = 0, between_nodes = 0, out_of_node = 0;

    /// The number of parts into which a state is divided between updates.
    std::uint64_t parts_of(std::size_t state) const { return sharded[state] ? shard : 1; }
  };

  std::filesystem::path path;
  std::uint64_t nodes = 1, ranks_per_node = 1;
  std::vector<Strategy> strategies;
  std::string strategy;  // of the plan
  std::vector<Unit> units;
  std::vector<Buffer> buffers;
  std::vector<Operation> operations;

  /// Returns the row of the plan's strategy.
  const Strategy& chosen() const;
};

/// Throws UserError if the file is no explained plan or is damaged.
PlanFile read_plan_file(const std::filesystem::path& path);

}  // namespace fsdp
