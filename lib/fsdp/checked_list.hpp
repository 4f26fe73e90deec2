// Inside plan_check: one list of operations of a plan, and what its checks ask of both.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "fsdp/layout.hpp"
#include "fsdp/placement.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

/// What the checks of a list have in common. All that it is made from must outlive it; `list` is one of the plan's.
class CheckedList {
 protected:
  CheckedList(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
              std::size_t micro_batches, const std::vector<Operation>& list);

  /// Throws InternalError: "the plan is not sound: operation 12 (reduce-scatter root) `why`", of operation `i` of the list.
  [[noreturn]] void fail(std::size_t i, const std::string& why) const;

  const PlanBuffer& buffer(BufferId id) const { return plan_.buffers[static_cast<std::size_t>(id)]; }
  const std::string& name(const Location& place) const { return buffer(place.buffer).name; }

  /// All elements of a unit, padding included.
  std::size_t whole_numel(std::size_t u) const { return layout_.units()[u].padded_numel; }
  /// Whether two units' elements of `type` meet, which begin at `x` and `y`.
  bool overlap(std::size_t a, const Location& x, std::size_t b, const Location& y, DType type) const {
    return x.buffer == y.buffer && x.offset < y.offset + whole_numel(b) * size_of(type) &&
           y.offset < x.offset + whole_numel(a) * size_of(type);
  }

  /// The stage whose parameters an operation reads or whose gradients it writes; none: -1.
  int stage_of(const Operation& op) const;
  /// Which of the places of a unit's sums of gradients this is, where they go in a tree; none: -1.
  int sum_at(std::size_t u, const Location& place) const;

  const Plan& plan_;
  const Layout& layout_;
  const Placement& placement_;
  const std::size_t micro_batches_;
  const std::vector<Operation>& list_;
  std::vector<std::set<std::size_t>> stage_units_;
  // The tables of the plan, as operations see them: of what is kept on the host, where it is loaded.
  std::vector<Location> master_, parameters_, gradients_, wide_master_, wide_gradients_, whole_parameters_, whole_gradients_;
};

}  // namespace fsdp
