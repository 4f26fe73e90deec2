// Builds the part of an update after backward: the gradient norm and the optimizer, including the sums over whole tensors that
// LAMB and Adafactor need ("statistics"), and the whole matrices that Muon needs ("directions": the matrices from which the
// update is computed). Private to the plan builder.
#pragma once

#include "plan/build/unit_placement.hpp"

namespace fsdp {

class UpdateBuilder {
 public:
  /// The plan must have all other buffers when append_norm(), append_optimizer() or append_publish() is called. Both arguments
  /// must outlive this object.
  UpdateBuilder(const UnitPlacement& units, Plan& plan, bool clips_values)
      : units_(units), plan_(plan), clips_values_(clips_values) {}

  /// Adds buffers for this rank's part of directions. Units share these buffers one after another. The gathered directions of a
  /// unit use the memory of its unreduced gradient, which must be in the plan already.
  void add_direction_buffers();
  /// Adds the buffers for sums over whole tensors.
  void add_statistics_buffers();

  /// Append the last two sections of the update. If a unit's new parameters are gathered, the gather overlaps with the
  /// optimizer's work on the next unit.
  void append_norm(int micro_batch);
  void append_optimizer(int micro_batch);
  /// Builds the list Plan::publish.
  void append_publish();

 private:
  void emit(Operation op);
  void emit(const Kind& kind, StreamId stream, int u, std::vector<Operand> operands, DType type = DType::f32,
            GroupAxis group = GroupAxis::shard);
  void emit_sum(const Kind& kind, GroupAxis group, Operand what, std::size_t count, int round = 0);
  void emit_clip(int u);
  /// Append the conversion of 16-bit state to fp32, in plan.wide_gradients or plan.wide_master, for the next operation.
  void upcast_gradient(int u);
  void upcast_master(int u);
  void emit_statistics(int round);
  void emit_optimizer(int u);
  void emit_update(int u);
  void emit_matrices(const std::vector<int>& together);
  /// Returns true if parameters are whole at rest and each rank updates a part, so that they are gathered after the update.
  bool is_published(int u) const { return units_.scattered(u) && !units_.sharded_at_rest(u); }
  bool shares_memory(int u, const std::vector<int>& others) const;
  Location words(int u, int round) const;
  void append_states(int u, std::vector<Operand>& operands) const;

  const UnitPlacement& units_;
  Plan& plan_;
  const bool clips_values_;
  int micro_batch_ = 0;
  // Per unit with a rule for whole matrices: `directions_` is this rank's part of the directions, and `whole_directions_` is
  // the whole directions. The two can be the same place.
  std::vector<Location> directions_, whole_directions_;
};

/// The operation that gathers a unit's parameters.
Operation gather_operation(const UnitPlacement& units, const Plan& plan, int u);

}  // namespace fsdp
