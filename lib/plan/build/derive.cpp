#include "plan/build/derive.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "plan/build/unit_placement.hpp"
#include "plan/kind.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

/// An operation waits for the last writer of each operand that it reads, and for the last writer and all later readers of each
/// operand that it writes. It does not wait for its own stream, or for an operation that is already known to be done:
/// `seen[s][t]` is the last operation of stream t that stream s knows to be done.
void derive_waits(std::vector<Operation>& list, std::size_t buffers) {
  std::array<std::array<int, stream_count>, stream_count> seen;
  for (auto& row : seen) row.fill(-1);
  std::vector<std::array<int, stream_count>> known_at(list.size());  // `seen` of the operation's stream, at that operation
  std::vector<int> last_writer(buffers, -1);
  std::vector<std::vector<int>> readers(buffers);
  for (int i = 0; i < static_cast<int>(list.size()); ++i) {
    Operation& op = list[static_cast<std::size_t>(i)];
    const std::size_t mine = static_cast<std::size_t>(op.stream);
    std::set<int, std::greater<>> candidates;  // latest first: waiting for it may include the others
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const BufferId buffer = op.operands[k].place.buffer;
      if (at(last_writer, buffer) >= 0) candidates.insert(at(last_writer, buffer));
      if (writes(effect_on(op, k))) candidates.insert(at(readers, buffer).begin(), at(readers, buffer).end());
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
    for (std::size_t k = 0; k < op.operands.size(); ++k)
      if (!writes(effect_on(op, k))) at(readers, op.operands[k].place.buffer).push_back(i);
    for (const Location& place : writes_of(op)) {
      at(last_writer, place.buffer) = i;
      at(readers, place.buffer).clear();
    }
  }
}

/// A transient buffer lives from its first to its last use in a micro-batch.
void derive_lifetimes(std::vector<Operation>& list, const std::vector<PlanBuffer>& buffers) {
  std::map<std::pair<int, BufferId>, std::pair<std::size_t, std::size_t>> uses;
  for (std::size_t i = 0; i < list.size(); ++i)
    for (const Operand& operand : list[i].operands)
      if (at(buffers, operand.place.buffer).transient)
        uses.try_emplace({list[i].micro_batch, operand.place.buffer}, i, i).first->second.second = i;
  for (const auto& [key, use] : uses) {
    list[use.first].acquires.push_back(key.second);
    list[use.second].frees.push_back(key.second);
  }
}

/// Places the buffers that live for the whole run one after another, at multiples of their space's alignment. Transient buffers
/// follow, each at the lowest offset that is free during its lifetime in the first micro-batch (all micro-batches are alike) of
/// the main list. These offsets also fit the other lists: buffers that they use together are alive together in the main one.
void place_buffers(Plan& plan) {
  std::size_t fixed = 0;  // bytes on the device
  plan.spaces = {{&spaces::device, 0}};
  for (PlanBuffer& buffer : plan.buffers) {
    if (buffer.transient) continue;
    const auto is_its = [&](const SpaceUse& use) { return use.space == buffer.space; };
    auto use = std::find_if(plan.spaces.begin(), plan.spaces.end(), is_its);
    if (use == plan.spaces.end()) use = plan.spaces.insert(use, {buffer.space, 0});
    buffer.offset = std::exchange(use->bytes, use->bytes + round_up(buffer.bytes, buffer.space->alignment));
    if (buffer.space->tier == Tier::device) fixed += buffer.bytes;
  }
  const std::size_t used = plan.spaces.front().bytes;
  std::size_t top = used, live_bytes = 0, peak = 0;
  std::vector<BufferId> live;
  for (const Operation& op : plan.main_list()) {
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
  plan.spaces.front().bytes = top;
  plan.peak_bytes = fixed + peak;
}

}  // namespace fsdp
