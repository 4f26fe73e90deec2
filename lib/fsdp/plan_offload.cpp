#include "fsdp/plan_offload.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "fsdp/unit_placement.hpp"

namespace fsdp {

namespace {

using enum OperationKind;

/// The operations between which a home stays loaded.
struct Stay {
  const Home* home;
  std::size_t first, last;
  bool loads;            // its first operation needs what is kept
  bool changed = false;  // it has to be unloaded
};

class Loader {
 public:
  Loader(const Plan& plan, const std::vector<Home>& homes) : plan_(plan) {
    for (const Home& home : homes) homes_[home.buffer] = &home;
  }

  /// The list with its loads and unloads. `ends` are numbers of its operations, or one more than its last: they become what
  /// they are in the new list.
  std::vector<Operation> rewrite(const std::vector<Operation>& list, std::initializer_list<std::size_t*> ends) {
    find_stays(list);
    std::vector<std::vector<const Stay*>> before(list.size()), after(list.size());
    for (const Stay& stay : stays_) {
      if (stay.loads) before[stay.first].push_back(&stay);
      if (stay.changed) after[stay.last].push_back(&stay);
    }
    std::vector<Operation> all;
    std::vector<std::size_t> begins;  // of each operation in the new list
    for (std::size_t i = 0; i < list.size(); ++i) {
      begins.push_back(all.size());
      for (const Stay* stay : before[i]) all.push_back(transfer(load, StreamId::gather, *stay->home, list[i].micro_batch));
      Operation& op = all.emplace_back(list[i]);
      for (auto* places : {&op.reads, &op.writes})
        for (Location& place : *places) place = plan_.at_work(place);
      for (const Stay* stay : after[i]) all.push_back(transfer(unload, StreamId::reduce, *stay->home, list[i].micro_batch));
    }
    begins.push_back(all.size());
    for (std::size_t* end : ends) *end = begins[*end];
    return all;
  }

 private:
  const PlanBuffer& buffer(BufferId id) const { return at(plan_.buffers, id); }

  void find_stays(const std::vector<Operation>& list) {
    stays_.clear(), loaded_.clear(), contributed_.clear();
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (const Location& place : list[i].reads)
        if (buffer(place.buffer).on_host()) stay_at(i, place.buffer, true);
      for (const Location& place : list[i].writes)
        if (buffer(place.buffer).on_host()) stay_at(i, place.buffer, !overwrites(list[i], place)).changed = true;
    }
  }

  /// The home is loaded at operation `i`, from now on if it was not: then others that lie where it does leave.
  Stay& stay_at(std::size_t i, BufferId home, bool needs_what_is_kept) {
    std::vector<std::size_t>& here = loaded_[buffer(home).near.buffer];
    const auto mine = std::find_if(here.begin(), here.end(), [&](std::size_t s) { return stays_[s].home->buffer == home; });
    if (mine != here.end()) {
      stays_[*mine].last = i;
      return stays_[*mine];
    }
    std::erase_if(here, [&](std::size_t s) { return overlap(stays_[s].home->buffer, home); });
    here.push_back(stays_.size());
    return stays_.emplace_back(Stay{homes_.at(home), i, i, needs_what_is_kept});
  }

  bool overlap(BufferId a, BufferId b) const {
    const PlanBuffer &x = buffer(a), &y = buffer(b);
    return x.near.offset < y.near.offset + y.bytes && y.near.offset < x.near.offset + x.bytes;
  }

  /// Whether nothing of what was at `place` is needed. An update that is not applied leaves what the optimizer would write.
  bool overwrites(const Operation& op, const Location& place) {
    if (op.accumulate || place.per_shard != 0) return false;
    switch (op.kind) {
      case head:
      case block_backward:
      case embedding_backward:  // of a unit that several stages use, a micro-batch's first
        return std::exchange(contributed_[place.buffer], op.micro_batch + 1) != op.micro_batch + 1;
      case all_gather:
      case reduce_scatter:
      case clear:
      case round:
      case round_at_random:
        return true;
      default:
        return false;
    }
  }

  Operation transfer(OperationKind kind, StreamId stream, const Home& home, int micro_batch) const {
    const Location kept = home.buffer, near = buffer(home.buffer).near;
    return {.kind = kind,
            .stream = stream,
            .micro_batch = micro_batch,
            .unit = home.unit,
            .count = buffer(home.buffer).bytes / size_of(home.type),
            .type = home.type,
            .reads = {kind == load ? kept : near},
            .writes = {kind == load ? near : kept}};
  }

  const Plan& plan_;
  std::map<BufferId, const Home*> homes_;
  std::vector<Stay> stays_;
  std::map<BufferId, std::vector<std::size_t>> loaded_;  // where homes are loaded: the stays that go on there
  std::map<BufferId, int> contributed_;                  // the last micro-batch whose gradient is in it, from 1
};

}  // namespace

void add_loads(Plan& plan, const std::vector<Home>& homes) {
  if (homes.empty()) return;
  Loader loader(plan, homes);
  plan.update = loader.rewrite(plan.update, {&plan.sections.forward_backward, &plan.sections.gradient_norm});
  plan.evaluation = loader.rewrite(plan.evaluation, {});
  plan.publish = loader.rewrite(plan.publish, {});
}

}  // namespace fsdp
