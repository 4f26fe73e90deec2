#include "fsdp/plan_derive.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "fsdp/unit_placement.hpp"

namespace fsdp {

/// An operation waits for the last writer of what it reads, and for the last writer and all later readers of what it writes,
/// where those are on another stream and are not already known to be done: `seen[s][t]` is the last operation of stream t
/// that stream s knows of.
void derive_waits(std::vector<Operation>& list, std::size_t buffers) {
  std::array<std::array<int, stream_count>, stream_count> seen;
  for (auto& row : seen) row.fill(-1);
  std::vector<std::array<int, stream_count>> known_at(list.size());  // what the operation's stream knew when it ran
  std::vector<int> last_writer(buffers, -1);
  std::vector<std::vector<int>> readers(buffers);
  for (int i = 0; i < static_cast<int>(list.size()); ++i) {
    Operation& op = list[static_cast<std::size_t>(i)];
    const std::size_t mine = static_cast<std::size_t>(op.stream);
    std::set<int, std::greater<>> candidates;  // latest first: it may imply the others
    for (const Location& place : op.reads)
      if (at(last_writer, place.buffer) >= 0) candidates.insert(at(last_writer, place.buffer));
    for (const Location& place : op.writes) {
      if (at(last_writer, place.buffer) >= 0) candidates.insert(at(last_writer, place.buffer));
      candidates.insert(at(readers, place.buffer).begin(), at(readers, place.buffer).end());
    }
    for (const int c : candidates) {
      const std::size_t theirs = static_cast<std::size_t>(list[static_cast<std::size_t>(c)].stream);
      if (theirs == mine || seen[mine][theirs] >= c) continue;
      op.waits.push_back(c);
      for (std::size_t t = 0; t < stream_count; ++t)
        seen[mine][t] = std::max(seen[mine][t], known_at[static_cast<std::size_t>(c)][t]);
    }
    std::sort(op.waits.begin(), op.waits.end());
    for (const int w : op.waits) list[static_cast<std::size_t>(w)].awaited = true;
    seen[mine][mine] = i;
    known_at[static_cast<std::size_t>(i)] = seen[mine];
    for (const Location& place : op.reads) at(readers, place.buffer).push_back(i);
    for (const Location& place : op.writes) {
      at(last_writer, place.buffer) = i;
      at(readers, place.buffer).clear();
    }
  }
}

/// A transient buffer lives from its first to its last use inside a micro-batch.
void derive_lifetimes(std::vector<Operation>& list, const std::vector<PlanBuffer>& buffers) {
  std::map<std::pair<int, BufferId>, std::pair<std::size_t, std::size_t>> uses;
  for (std::size_t i = 0; i < list.size(); ++i)
    for (const auto* places : {&list[i].reads, &list[i].writes})
      for (const Location& place : *places)
        if (at(buffers, place.buffer).transient)
          uses.try_emplace({list[i].micro_batch, place.buffer}, i, i).first->second.second = i;
  for (const auto& [key, use] : uses) {
    list[use.first].acquires.push_back(key.second);
    list[use.second].frees.push_back(key.second);
  }
}

/// Buffers of the whole run one after another; above them transient ones, each at the lowest place that is free while it
/// lives in the first micro-batch (all micro-batches use them alike). Evaluation uses a subset of buffers that are alive
/// together in an update.
void place_buffers(Plan& plan) {
  std::size_t used = 0, slots = 0, host = 0;
  for (PlanBuffer& buffer : plan.buffers)
    if (!buffer.transient) {
      std::size_t& end = buffer.on_host() ? host : is_slot(buffer.role) ? slots : used;
      buffer.offset = std::exchange(end, end + buffer.bytes);
    }
  plan.slot_bytes = slots;
  plan.host_bytes = host;
  std::size_t top = used, live_bytes = 0, peak = 0;
  std::vector<BufferId> live;
  for (const Operation& op : plan.update.empty() ? plan.evaluation : plan.update) {
    if (op.micro_batch > 0) break;
    for (const BufferId id : op.acquires) {
      PlanBuffer& buffer = plan.buffers[static_cast<std::size_t>(id)];
      buffer.offset = used;
      for (const BufferId other : live) {  // `live` is kept in order of offset
        const PlanBuffer& neighbour = plan.buffers[static_cast<std::size_t>(other)];
        if (buffer.offset + buffer.bytes <= neighbour.offset) break;
        buffer.offset = std::max(buffer.offset, neighbour.offset + neighbour.bytes);
      }
      live.insert(
          std::find_if(live.begin(), live.end(),
                       [&](BufferId other) { return plan.buffers[static_cast<std::size_t>(other)].offset > buffer.offset; }),
          id);
      live_bytes += buffer.bytes;
      top = std::max(top, buffer.offset + buffer.bytes);
    }
    peak = std::max(peak, live_bytes);
    for (const BufferId id : op.frees) {
      live.erase(std::find(live.begin(), live.end(), id));
      live_bytes -= plan.buffers[static_cast<std::size_t>(id)].bytes;
    }
  }
  plan.arena_bytes = top;
  plan.peak_bytes = used + slots + peak;
}

}  // namespace fsdp
