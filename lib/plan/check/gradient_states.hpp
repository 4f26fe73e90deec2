// Checks each unit's gradient through an update: the gradient that each stage computes in each micro-batch is added exactly
// once. The sum is reduced over all ranks, included in the norm, and used by one optimizer step after the norm. Kind::follow is
// the check of a kind of operation: one of the functions below or another function. The library's checks are in one class,
// because most of them concern the order of operations.
#pragma once

#include <map>
#include <utility>

#include "plan/check/checked_list.hpp"

namespace fsdp {

class GradientStates : private CheckedList {
 public:
  /// `update` is the list Plan::update.
  explicit GradientStates(const CheckedList& update) : CheckedList(update), units_(layout_.units().size()) {}

  /// Throws InternalError at the first operation of the update that breaks a rule.
  void check();

  /// The backward pass of a stage writes the gradient of its units for a micro-batch, or adds to it.
  void contribute(const Operation& op);
  void clear(const Operation& op);
  void reduce_scatter(const Operation& op);
  void all_reduce(const Operation& op);
  void sum_in_tree(const Operation& op);
  /// These operations round fp32 values to the 16-bit state that is kept, and set the fp32 values to the rounded ones.
  void keep_gradient(const Operation& op);
  void keep_master(const Operation& op);
  /// As keep_gradient(), and then take_squares(). The fp32 values are undefined afterwards.
  void keep_and_square(const Operation& op);
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
  void update_in_16_bits(const Operation& op);
  void average(const Operation& op);

  // For checks of kinds outside the library.
  void require_norm() const;
  /// Requires that the optimizer has not used the unit's gradient yet.
  void require_unused(const Operation& op) const;
  /// Requires that the operation runs at most once for each trained unit, and for all of them or none.
  void once(const Operation& op);

 private:
  using Contribution = std::pair<int, int>;  // micro-batch, stage

  /// A sum over micro-batches [begin, end). If `reduced` is true, it has been summed over all ranks that have a part of the
  /// sum.
  struct Sum {
    int begin, end;
    bool reduced;
  };

  /// The progress of a unit's directions, if its optimizer needs whole matrices (Muon).
  enum class Matrices { none, parts, gathered, worked, returned, summed };

  struct UnitGradient {
    std::set<Contribution> whole, shard;  // content of the buffers
    // The content of the kept gradients, if these have 16 bits. `whole` and `shard` are then the content of the fp32 sums.
    std::set<Contribution> kept_whole, kept_shard;
    bool whole_is_kept = false, kept_is_reduced = false, master_is_kept = false;
    int cleared_for = -1;     // micro-batch
    bool reduced = false;     // summed over the ranks with the same part
    std::map<int, Sum> sums;  // partial sums, by the index of sum_at(); `reduced` is then that of the whole gradient
    bool in_norm = false, used = false, updated = false;
    std::set<const Kind*> done;  // kinds whose operation on this unit has called once()
    int counted = 0;             // completed rounds of statistics
    Matrices matrices = Matrices::none;
  };

  using CheckedList::fail;
  [[noreturn]] void fail(const std::string& why) const { fail(at_, why); }
  static std::size_t u_of(const Operation& op) { return static_cast<std::size_t>(op.unit); }
  UnitGradient& unit_of(const Operation& op) { return units_[u_of(op)]; }
  bool is_trained(std::size_t u) const { return layout_.units()[u].trainable; }
  int rounds_of(std::size_t u) const { return layout_.units()[u].rule->statistics.rounds; }
  bool is_16_bit(std::size_t u) const { return layout_.units()[u].types.gradient != DType::f32; }
  bool is_scattered(std::size_t u) const {
    const Unit& unit = layout_.units()[u];
    return unit.sharded && unit.shards > 1 && placement_.optimizer_state == Place::sharded;
  }
  bool is_replicated(std::size_t u) const { return placement_.axis != ShardAxis::world || !is_scattered(u); }
  std::set<int> stages_of(std::size_t u) const;
  bool share_memory(std::size_t u, std::size_t other) const;
  /// The index of `place` among the places of the unit's partial sums; -1 if it is none of them.
  int sum_at(std::size_t u, const Location& place) const;
  static void forget_what_is_kept(UnitGradient& of);
  void contribute_to(const Operation& op, std::size_t u);
  Sum take_micro_batch(const Operation& op, std::size_t u, bool is_reduced);
  void add_to_tree(const Operation& op, std::size_t u, const Location& to, const Sum& sum);
  void advance(const Operation& op, Matrices from, Matrices to, const char* why);
  void require_whole_micro_batches(const std::set<Contribution>& have, std::size_t stages) const;
  void require_all(std::size_t u, const std::set<Contribution>& have) const;
  void check_end() const;

  std::size_t at_ = 0;  // index of the current operation
  std::vector<UnitGradient> units_;
  int reduced_rounds_ = 0;
  bool norm_is_known_ = false, squares_are_summed_ = false, loss_is_summed_ = false;
};

/// Wraps a member function as Kind::follow.
template <void (GradientStates::*member)(const Operation&)>
void protocol(GradientStates& states, const Operation& op) {
  (states.*member)(op);
}

}  // namespace fsdp
