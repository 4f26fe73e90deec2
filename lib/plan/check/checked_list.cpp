#include "plan/check/checked_list.hpp"

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

CheckedList::CheckedList(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                         std::size_t micro_batches, const std::vector<Operation>& list)
    : plan_(plan), layout_(layout), placement_(placement), sizes_(sizes), micro_batches_(micro_batches), list_(list) {
  const std::vector<std::size_t> unit_of = layout.units_of_parameters();
  for (const auto& stage : sizes.stages) {
    std::set<std::size_t> units;
    for (const std::size_t p : stage) units.insert(unit_of.at(p));
    stage_units_.emplace_back(units.begin(), units.end());
  }
}

void CheckedList::fail(std::size_t i, const std::string& why) const {
  const Operation& op = list_[i];
  throw InternalError(format("the plan is not sound: operation {} ({}{}{}) {}", i, op.kind->name,
                             op.unit >= 0 ? " " + name_of_unit(static_cast<std::size_t>(op.unit)) : "",
                             op.block >= 0 ? format(" block {}", op.block) : "", why));
}

std::vector<std::size_t> CheckedList::units_of(const Operation& op) const {
  if (op.unit >= 0) return {static_cast<std::size_t>(op.unit)};
  if (op.stage >= 0) return stage_units_[static_cast<std::size_t>(op.stage)];
  return {};
}

}  // namespace fsdp
