// Applies the strategy and the plan options to each unit: which of the unit's state is sharded, replicated, rounded or in a
// slot. Private to the plan builder.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/layout.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace fsdp {

/// Units, blocks and buffers have int indices; -1 means none.
template <class T>
auto& at(T& values, int i) {
  return values[static_cast<std::size_t>(i)];
}

/// The properties of units. The constructor's arguments must outlive this object.
class UnitPlacement {
 public:
  UnitPlacement(const Layout& layout, const Placement& row, const PlanOptions& options)
      : layout_(layout), row_(row), options_(options) {}

  int count() const { return static_cast<int>(layout_.units().size()); }
  const Unit& unit(int u) const { return at(layout_.units(), u); }
  const Layout& layout() const { return layout_; }

  bool trained(int u) const { return options_.training && unit(u).trainable; }
  /// Returns true if the unit is state of layers.
  bool is_of_state(int u) const { return unit(u).rule->is_of_state; }
  /// Returns true if an average (EMA) of the unit is kept, if any is.
  bool is_averaged(int u) const { return options_.training && unit(u).is_averaged(); }
  /// Returns true if the unit has an fp32 copy besides the parameters used for computation.
  bool rounded(int u) const { return unit(u).types.parameter != unit(u).types.master; }
  /// Return true if the unit is trained and its master parameters, or its gradient, are stored in bf16. Operations
  /// other than an update in one pass then work on an fp32 copy, in memory that another unit's copy overwrites later.
  bool has_16_bit_master(int u) const { return trained(u) && unit(u).types.master != DType::f32; }
  bool has_16_bit_gradient(int u) const { return trained(u) && unit(u).types.gradient != DType::f32; }
  /// Returns true if the update reads and writes bf16 state in one pass, without fp32 copies.
  bool updates_in_16_bits(int u) const {
    return has_16_bit_master(u) && has_16_bit_gradient(u) && !rounded(u) && unit(u).rule->by_element &&
           options_.optimizer_state_type != DType::f32 && !options_.clip_values && !options_.average_weights;
  }
  bool works_on_matrices(int u) const { return trained(u) && unit(u).rule->whole.work; }
  /// The number of rounds of sums over whole tensors that the unit's optimizer needs.
  int rounds(int u) const { return unit(u).rule->statistics.rounds; }

  /// Returns true if each rank of the shard axis holds only its shard of the parameters at rest.
  bool sharded_at_rest(int u) const { return is_sharded(u) && row_.parameters_at_rest == Place::sharded; }
  /// Returns true if each rank of the shard axis updates only its shard.
  bool scattered(int u) const { return is_sharded(u) && row_.optimizer_state == Place::sharded; }
  /// Returns true if gathered parameters are released between forward and backward, so that a slot can be reused by another
  /// unit.
  bool gathers_in_turn() const { return row_.parameters_forward_to_backward == Place::sharded; }
  /// Returns true if each micro-batch's gradient is summed over all ranks, and these sums are added as a tree.
  bool sums_in_a_tree() const { return options_.training && options_.invariant && options_.micro_batches > 1; }
  /// Returns true if gradients stay whole between micro-batches.
  bool keeps_whole_gradients() const {
    return !sums_in_a_tree() && (row_.gradients_between_micro_batches == Place::whole || options_.accumulate_unsharded);
  }
  /// Returns true if the whole gradient is in a slot from backward until it is reduced or added to the kept sum.
  bool gradient_in_slot(int u) const {
    return trained(u) && (has_16_bit_gradient(u) || sums_in_a_tree() || (scattered(u) && !keeps_whole_gradients()));
  }
  /// is_replicated() returns true if other ranks have the same part of the unit's gradient, each computed from that rank's own
  /// data. replicas() returns the group of those ranks.
  bool is_replicated(int u) const { return row_.axis != ShardAxis::world || !scattered(u); }
  GroupAxis replicas(int u) const { return unit(u).sharded ? GroupAxis::replicate : GroupAxis::world; }

  /// Elements and bytes of a rank's shard, and bytes of the whole unit with padding.
  std::size_t shard_numel(int u) const { return layout_.shard_numel(static_cast<std::size_t>(u)); }
  std::size_t shard_bytes(int u, DType type = DType::f32) const { return shard_numel(u) * size_of(type); }
  std::size_t whole_bytes(int u, DType type = DType::f32) const { return unit(u).padded_numel * size_of(type); }

 private:
  // On a shard axis of one rank everything is whole, so there is nothing to gather, scatter or copy.
  bool is_sharded(int u) const { return unit(u).sharded && unit(u).shards > 1; }

  const Layout& layout_;
  const Placement& row_;
  const PlanOptions& options_;
};

/// Adds a buffer to the plan. Its offset is set later.
BufferId add_buffer(Plan& plan, std::string name, BufferRole role, std::size_t bytes, bool transient = false);

}  // namespace fsdp
