#include "fsdp/checked_list.hpp"

#include <map>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

using enum OperationKind;

CheckedList::CheckedList(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                         std::size_t micro_batches, const std::vector<Operation>& list)
    : plan_(plan), layout_(layout), placement_(placement), micro_batches_(micro_batches), list_(list) {
  std::map<std::size_t, std::size_t> unit_of;
  for (std::size_t u = 0; u < layout.units().size(); ++u)
    for (const std::size_t p : layout.units()[u].parameters) unit_of[p] = u;
  for (const auto& stage : sizes.stages) {
    std::set<std::size_t>& units = stage_units_.emplace_back();
    for (const std::size_t p : stage) units.insert(unit_of.at(p));
  }
  const auto at_work = [&](std::vector<Location> places) {
    for (Location& place : places) place = plan.at_work(place);
    return places;
  };
  master_ = at_work(plan.master), parameters_ = at_work(plan.parameters), gradients_ = at_work(plan.gradients);
  wide_master_ = at_work(plan.wide_master), wide_gradients_ = at_work(plan.wide_gradients);
  whole_parameters_ = at_work(plan.whole_parameters), whole_gradients_ = at_work(plan.whole_gradients);
}

void CheckedList::fail(std::size_t i, const std::string& why) const {
  const Operation& op = list_[i];
  throw InternalError(format("the plan is not sound: operation {} ({}{}{}) {}", i, info_of(op.kind).name,
                             op.unit >= 0 ? " " + layout_.units()[static_cast<std::size_t>(op.unit)].name : "",
                             op.block >= 0 ? format(" block {}", op.block) : "", why));
}

int CheckedList::stage_of(const Operation& op) const {
  switch (op.kind) {
    case embedding_forward:
    case embedding_decode:
    case embedding_backward:
      return 0;
    case block_forward:
    case block_decode:
    case recompute:
    case refill:
    case block_backward:
      return op.block + 1;
    case head:
    case head_loss:
    case head_logits:
      return static_cast<int>(stage_units_.size()) - 1;
    default:
      return -1;
  }
}

int CheckedList::sum_at(std::size_t u, const Location& place) const {
  if (place == gradients_[u]) return 0;
  const std::vector<Location>& others = plan_.waiting_sums[u];
  for (std::size_t s = 0; s < others.size(); ++s)
    if (place == plan_.at_work(others[s])) return static_cast<int>(s) + 1;
  return -1;
}

}  // namespace fsdp
