// What a strategy and the options of a plan make of each unit. Private to the builder of plans.
#pragma once

#include <cstddef>
#include <vector>

#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

/// Units, blocks and buffers are counted with ints, of which -1 is none.
template <class T>
auto& at(T& values, int i) {
  return values[static_cast<std::size_t>(i)];
}

/// Answers questions about units; everything it is made of must outlive it.
class UnitPlacement {
 public:
  UnitPlacement(const Layout& layout, const Placement& row, const PlanOptions& options)
      : layout_(layout), row_(row), options_(options) {}

  int count() const { return static_cast<int>(layout_.units().size()); }
  const Unit& unit(int u) const { return at(layout_.units(), u); }
  const Layout& layout() const { return layout_; }

  bool trained(int u) const { return options_.training && unit(u).trainable; }
  /// There is an fp32 copy beside what is computed with.
  bool rounded(int u) const { return unit(u).types.parameter != unit(u).types.master; }
  /// Operations that work on these find them in fp32 in memory that units take in turn.
  bool has_narrow_master(int u) const { return unit(u).types.master != DType::f32; }
  bool has_narrow_gradient(int u) const { return unit(u).types.gradient != DType::f32; }
  bool works_on_matrices(int u) const { return trained(u) && unit(u).rule->whole.work; }
  /// Rounds of sums over whole tensors that its optimizer needs.
  int rounds(int u) const { return unit(u).rule->statistics.rounds; }

  /// Each rank of the shard axis has a part of the parameters at rest.
  bool sharded_at_rest(int u) const { return is_sharded(u) && row_.parameters_at_rest == Place::sharded; }
  /// Each rank of the shard axis updates a part.
  bool scattered(int u) const { return is_sharded(u) && row_.optimizer_state == Place::sharded; }
  /// Gathered parameters stay from forward to backward, unless units take turns in slots.
  bool gathers_in_turn() const { return row_.parameters_forward_to_backward == Place::sharded; }
  /// Each micro-batch's gradient is summed over all ranks, and these sums go in a tree.
  bool sums_in_a_tree() const { return options_.training && options_.invariant && options_.micro_batches > 1; }
  /// Gradients stay whole between micro-batches.
  bool keeps_whole_gradients() const {
    return !sums_in_a_tree() && (row_.gradients_between_micro_batches == Place::whole || options_.accumulate_unsharded);
  }
  /// Whole gradients live in a slot, from backward until they are reduced, or added to what is kept.
  bool gradient_in_slot(int u) const {
    return trained(u) && (has_narrow_gradient(u) || sums_in_a_tree() || (scattered(u) && !keeps_whole_gradients()));
  }
  /// Other ranks have the same part of the unit's gradient, each from its own data; and which ranks those are.
  bool is_replicated(int u) const { return row_.axis != ShardAxis::world || !scattered(u); }
  GroupAxis replicas(int u) const { return unit(u).sharded ? GroupAxis::replicate : GroupAxis::world; }

  /// Elements and bytes of a rank's part, and of the whole with its padding.
  std::size_t shard_numel(int u) const { return layout_.shard_numel(static_cast<std::size_t>(u)); }
  std::size_t shard_bytes(int u, DType type = DType::f32) const { return shard_numel(u) * size_of(type); }
  std::size_t whole_bytes(int u, DType type = DType::f32) const { return unit(u).padded_numel * size_of(type); }

 private:
  // On a shard axis of one rank everything is whole where it is: there is nothing to gather, to scatter or to copy.
  bool is_sharded(int u) const { return unit(u).sharded && unit(u).shards > 1; }

  const Layout& layout_;
  const Placement& row_;
  const PlanOptions& options_;
};

/// Adds a buffer to the plan, which has no place yet.
BufferId add_buffer(Plan& plan, std::string name, BufferRole role, std::size_t bytes, bool transient = false);

}  // namespace fsdp
