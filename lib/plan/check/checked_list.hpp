// The base class of the checkers of plans: one list of operations of a plan, and common functions. Each checker is made from a
// CheckedList.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "plan/kind.hpp"
#include "plan/layout.hpp"
#include "plan/placement.hpp"
#include "plan/plan.hpp"

namespace fsdp {

/// The arguments must outlive this object. `list` must be one of the plan's lists.
class CheckedList {
 public:
  CheckedList(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
              std::size_t micro_batches, const std::vector<Operation>& list);

 protected:
  /// Throws InternalError about operation `i`: "the plan is not sound: operation 12 (reduce-scatter root) `why`".
  [[noreturn]] void fail(std::size_t i, const std::string& why) const;

  const PlanBuffer& buffer(BufferId id) const { return plan_.buffers[static_cast<std::size_t>(id)]; }
  const std::string& name(const Location& place) const { return buffer(place.buffer).name; }
  const std::string& name_of_unit(std::size_t u) const { return layout_.units()[u].name; }

  /// The units that an operation works on: its own unit, or those of its stage. Operation::unit and stage must have been
  /// checked.
  std::vector<std::size_t> units_of(const Operation& op) const;
  Query ask(const Operation& op, std::span<const std::size_t> units, std::size_t index = 0) const {
    return {plan_, layout_, placement_, sizes_, op, units, index};
  }

  const Plan& plan_;
  const Layout& layout_;
  const Placement& placement_;
  const ModelSizes& sizes_;
  const std::size_t micro_batches_;
  const std::vector<Operation>& list_;
  std::vector<std::vector<std::size_t>> stage_units_;  // in ascending order
};

/// Checks memory that several units, stages or micro-batches share one after another: an operation must find the content of its
/// own unit, stage and micro-batch there.
///
/// Simulates a list whose operands have been checked. For each range of bytes it tracks the content (unit, stage and
/// micro-batch), and whether the host copy of offloaded state is out of date. Throws InternalError if
/// - an operation finds other content than its operand needs,
/// - gathered parameters or matrices are overwritten before their release, or are still there at the end,
/// - parameters that other ranks have changed are not gathered again before an operation reads them or the list ends,
/// - an evaluation does not produce its loss, or a decoding step does not produce its logits,
/// - an operation other than loads and unloads accesses offloaded state, or a change to offloaded state is lost. Only unreduced
/// gradients may be lost at the end of a list,
/// - offloaded activations are loaded before they are unloaded.
void check_contents(const CheckedList& list);

}  // namespace fsdp
