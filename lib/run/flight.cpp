#include "run/flight.hpp"

#include <algorithm>

#include "plan/kind.hpp"

namespace fsdp {

FlightEntry flight_entry(std::string_view what) {
  FlightEntry entry;
  std::copy_n(what.begin(), std::min(what.size(), entry.what.size() - 1), entry.what.begin());
  return entry;
}

std::vector<FlightEntry> flight_entries(const std::vector<Operation>& operations, const Layout& layout) {
  std::vector<FlightEntry> entries;
  for (const Operation& op : operations) {
    FlightEntry& entry = entries.emplace_back(flight_entry(title_of(op, layout)));
    entry.micro_batch = op.micro_batch;
    entry.exchanges = is_collective(op) ? 1 : 0;
    if (is_collective(op) || op.kind->part == UpdatePart::transfer) entry.bytes = op.bytes();
  }
  return entries;
}

}  // namespace fsdp
