#include "run/flight.hpp"

#include <algorithm>

#include "plan/kind.hpp"

namespace fsdp {

FlightEntry flight_entry(std::string_view what) {
  FlightEntry entry;
  std::copy_n(what.begin(), std::min(what.size(), entry.what.size() - 1), entry.what.begin());
  return entry;
}

FlightObserver::FlightObserver(FlightLanes& lanes, const Plan& plan, const Layout& layout) : lanes_(lanes) {
  for (const auto* list : lists_of(plan)) {
    std::vector<FlightEntry>& entries = lists_.emplace_back(list, std::vector<FlightEntry>()).second;
    for (const Operation& op : *list) {
      FlightEntry& entry = entries.emplace_back(flight_entry(title_of(op, layout)));
      entry.micro_batch = op.micro_batch;
      entry.exchanges = is_collective(op) ? 1 : 0;
      if (is_collective(op) || op.kind->part == UpdatePart::transfer) entry.bytes = op.bytes();
    }
  }
}

void FlightObserver::begin(const ListRun& run, std::size_t index) {
  const auto list = std::find_if(lists_.begin(), lists_.end(), [&](const auto& one) { return one.first == &run.operations; });
  begin_operation(lane_of(run.operations[index]), list->second[index], run.update, now_ns());
}

void FlightObserver::end(const ListRun& run, std::size_t index) {
  const Operation& op = run.operations[index];
  if (!run.streams[static_cast<std::size_t>(op.stream)]->marks_later()) end_operation(lane_of(op), run.times[index].end_ns);
}

void FlightObserver::finished(const ListRun& run) {
  for (std::size_t s = 0; s < run.streams.size(); ++s) end_all_operations(lanes_[s]);
}

}  // namespace fsdp
