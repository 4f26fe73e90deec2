// The part of an update that follows backward: the gradient's norm and the optimizer, with the sums over whole tensors and the
// work on whole matrices that some optimizers need. Private to the builder of plans.
#pragma once

#include "fsdp/build/unit_placement.hpp"

namespace fsdp {

class UpdateBuilder {
 public:
  /// The plan's other buffers are there when append_norm(), append_optimizer() or append_publish() is called. Both must outlive
  /// this.
  UpdateBuilder(const UnitPlacement& units, Plan& plan, bool clips_values)
      : units_(units), plan_(plan), clips_values_(clips_values) {}

  /// Directions take turns in buffers of their own; whole matrices lie where the unit's gradient was before its reduction,
  /// which the plan knows by now.
  void add_direction_buffers();
  /// Buffers in which sums over whole tensors are counted.
  void add_statistics_buffers();

  /// The last two sections of the update; each unit's parameters are published while the next one's are updated.
  void append_norm(int micro_batch);
  void append_optimizer(int micro_batch);
  /// The list `publish`.
  void append_publish();

 private:
  void emit(Operation op);
  void emit_sum(const Kind& kind, GroupAxis group, Operand what, std::size_t count, int round = 0);
  void emit_clip(int u);
  /// For the operation that follows, which finds them in plan.wide_gradients and plan.wide_master.
  void upcast_gradient(int u);
  void upcast_master(int u);
  void emit_statistics(int round);
  void emit_optimizer(int u);
  void emit_matrices(const std::vector<int>& together);
  /// Parameters that are whole at rest, of which each rank has changed its part, are gathered.
  bool is_published(int u) const { return units_.scattered(u) && !units_.sharded_at_rest(u); }
  bool shares_memory(int u, const std::vector<int>& others) const;
  Location words(int u, int round) const;
  void append_states(int u, std::vector<Operand>& operands) const;

  const UnitPlacement& units_;
  Plan& plan_;
  const bool clips_values_;
  int micro_batch_ = 0;
  // Per unit, where its rule needs whole matrices: this rank's part of their directions, and the whole of them, which may be
  // the same.
  std::vector<Location> directions_, whole_directions_;
};

/// The gathering of a unit's parameters.
Operation gather_operation(const UnitPlacement& units, const Plan& plan, int u);

}  // namespace fsdp
