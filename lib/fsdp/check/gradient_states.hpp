// What becomes of each unit's gradient in an update: every contribution of every micro-batch counts exactly once, is reduced
// over all ranks that have a part in it, is in the norm, and is used in one step of the optimizer, after the norm. A kind of
// operation names its step (Kind::follow): one of these, or one of its own that asks what it needs to know. The library's are
// in one class, because most rules are about their order.
#pragma once

#include <map>
#include <utility>

#include "fsdp/check/checked_list.hpp"

namespace fsdp {

class GradientStates : private CheckedList {
 public:
  GradientStates(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                 std::size_t micro_batches)
      : CheckedList(plan, layout, placement, sizes, micro_batches, plan.update), units_(layout.units().size()) {}

  /// Throws InternalError at the first operation of the update that breaks a rule.
  void check();

  /// The backward pass of a stage gives a micro-batch's gradient of its units, or adds to it.
  void contribute(const Operation& op);
  void clear(const Operation& op);
  void reduce_scatter(const Operation& op);
  void all_reduce(const Operation& op);
  void sum_in_tree(const Operation& op);
  /// fp32 sums go into what is kept of a gradient, and become it.
  void keep_whole_gradient(const Operation& op);
  void keep_gradient(const Operation& op);
  void keep_master(const Operation& op);
  void upcast_gradient(const Operation& op);
  void upcast_master(const Operation& op);
  void take_squares(const Operation& op);
  void sum_squares(const Operation& op);
  void sum_loss(const Operation& op);
  void know_norm(const Operation& op);
  void count(const Operation& op);
  void sum_statistics(const Operation& op);
  void make_directions(const Operation& op);
  void gather_directions(const Operation& op);
  void work_on_matrices(const Operation& op);
  void return_directions(const Operation& op);
  void sum_directions(const Operation& op);
  void update(const Operation& op);

  // For steps of other kinds.
  void require_norm() const;
  /// The optimizer has not read the unit's gradient.
  void require_unused(const Operation& op) const;
  /// It happens to each trained unit's gradient at most once, and to all or to none.
  void once(const Operation& op);

 private:
  using Contribution = std::pair<int, int>;  // micro-batch, stage

  /// A sum over micro-batches, [begin, end); `reduced`: over all ranks that have a part in it.
  struct Sum {
    int begin, end;
    bool reduced;
  };

  /// How far the directions of an optimizer on whole matrices are.
  enum class Matrices { none, parts, gathered, worked, returned, summed };

  struct UnitGradient {
    std::set<Contribution> whole, shard;  // what the buffers hold
    // If gradients are kept in 16 bits, `whole` and `shard` are the fp32 sums, and these what is kept of them.
    std::set<Contribution> kept_whole, kept_shard;
    bool whole_is_kept = false, kept_is_reduced = false, master_is_kept = false;
    int cleared_for = -1;     // micro-batch
    bool reduced = false;     // over the ranks that have the same part
    std::map<int, Sum> sums;  // if they go in a tree: those that wait, by sum_at(); `reduced` is of the whole gradient then
    bool in_norm = false, used = false, updated = false;
    std::set<const Kind*> done;  // what happens once
    int counted = 0;             // rounds of statistics
    Matrices matrices = Matrices::none;
  };

  using CheckedList::fail;
  [[noreturn]] void fail(const std::string& why) const { fail(at_, why); }
  static std::size_t u_of(const Operation& op) { return static_cast<std::size_t>(op.unit); }
  UnitGradient& unit_of(const Operation& op) { return units_[u_of(op)]; }
  bool is_trained(std::size_t u) const { return layout_.units()[u].trainable; }
  int rounds_of(std::size_t u) const { return layout_.units()[u].rule->statistics.rounds; }
  bool is_narrow(std::size_t u) const { return layout_.units()[u].types.gradient != DType::f32; }
  bool is_scattered(std::size_t u) const {
    const Unit& unit = layout_.units()[u];
    return unit.sharded && unit.shards > 1 && placement_.optimizer_state == Place::sharded;
  }
  bool is_replicated(std::size_t u) const { return placement_.axis != ShardAxis::world || !is_scattered(u); }
  std::set<int> stages_of(std::size_t u) const;
  bool share_memory(std::size_t u, std::size_t other) const;
  /// Which of the places of a unit's sums of gradients this is, if they go in a tree; none: -1.
  int sum_at(std::size_t u, const Location& place) const;
  void contribute_to(const Operation& op, std::size_t u);
  void keep(const Operation& op, bool whole);
  Sum take_micro_batch(const Operation& op, std::size_t u, bool is_reduced);
  void add_to_tree(const Operation& op, std::size_t u, const Location& to, const Sum& sum);
  void advance(const Operation& op, Matrices from, Matrices to, const char* why);
  void require_whole_micro_batches(const std::set<Contribution>& have, std::size_t stages) const;
  void require_all(std::size_t u, const std::set<Contribution>& have) const;
  void check_end() const;

  std::size_t at_ = 0;  // the operation
  std::vector<UnitGradient> units_;
  int reduced_rounds_ = 0;
  bool norm_is_known_ = false, squares_are_summed_ = false, loss_is_summed_ = false;
};

/// One of the steps above as Kind::follow.
template <void (GradientStates::*member)(const Operation&)>
void protocol(GradientStates& states, const Operation& op) {
  (states.*member)(op);
}

}  // namespace fsdp
