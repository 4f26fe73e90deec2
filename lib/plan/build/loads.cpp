#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "plan/build/derive.hpp"
#include "plan/build/unit_placement.hpp"
#include "plan/kind.hpp"

namespace fsdp {

namespace {

/// The range of operations during which a buffer stays loaded.
struct Stay {
  BufferId buffer;
  std::size_t first, last;
  bool loads;                                   // the first operation of the range needs the content at rest
  std::size_t free;                             // the first operation after all earlier stays in this slot
  std::optional<std::size_t> last_change = {};  // the last operation of the range that changes the content
};

class Loader {
 public:
  explicit Loader(const Plan& plan) : plan_(plan) {}

  /// Returns the list with loads and unloads. `ends` point to section ends in the old list; they are updated to the new list.
  std::vector<Operation> rewrite(const std::vector<Operation>& list, std::initializer_list<std::size_t*> ends) {
    find_stays(list);
    // unload[i]: the buffers that are unloaded after operation i. A content is complete after its last change; later operations
    // of the stay only read it.
    std::vector<std::vector<BufferId>> load(list.size()), unload(list.size());
    std::set<BufferId> needed;  // buffers whose content at rest a later stay needs
    for (auto stay = stays_.rbegin(); stay != stays_.rend(); ++stay) {
      // Unreduced gradients and activations are not read after the list, so they are unloaded only if a later stay needs them.
      // Reduced gradients are unloaded, although the optimizer only reads them: Executor::gradients() and norms by group read
      // them at rest.
      const BufferRole role = buffer(stay->buffer).role;
      const bool is_state = role != BufferRole::unreduced_gradients && role != BufferRole::activations;
      if (stay->last_change && (is_state || needed.contains(stay->buffer))) {
        auto& here = unload[*stay->last_change];
        here.insert(here.begin(), stay->buffer);
      }
      if (stay->loads)
        needed.insert(stay->buffer);
      else
        needed.erase(stay->buffer);
    }
    // load[i]: the buffers that are loaded before operation i. Each is loaded once its slot is free. Loads are in the order in
    // which their contents are needed, so that no load delays one that is needed earlier.
    std::size_t place = 0;
    for (const Stay& stay : stays_)
      if (stay.loads) {
        place = std::max(place, stay.free);
        load[place].push_back(stay.buffer);
      }
    std::vector<Operation> all;
    std::vector<std::size_t> begins;  // of each operation, in the new list
    for (std::size_t i = 0; i < list.size(); ++i) {
      begins.push_back(all.size());
      for (const BufferId id : load[i]) all.push_back(transfer(kinds::load, StreamId::load, id, list[i].micro_batch));
      Operation& op = all.emplace_back(list[i]);
      for (Operand& operand : op.operands) operand.place = plan_.at_work(operand.place);
      for (const BufferId id : unload[i]) all.push_back(transfer(kinds::unload, StreamId::unload, id, list[i].micro_batch));
    }
    begins.push_back(all.size());
    for (std::size_t* end : ends) *end = begins[*end];
    return all;
  }

 private:
  const PlanBuffer& buffer(BufferId id) const { return at(plan_.buffers, id); }

  void find_stays(const std::vector<Operation>& list) {
    stays_.clear(), loaded_.clear(), free_.clear(), contributed_.clear();
    for (std::size_t i = 0; i < list.size(); ++i)
      for (const bool written : {false, true})
        for (std::size_t k = 0; k < list[i].operands.size(); ++k) {
          const Location& place = list[i].operands[k].place;
          const Effect effect = effect_on(list[i], k);
          if (!buffer(place.buffer).is_offloaded() || writes(effect) != written) continue;
          Stay& stay = stay_at(i, place.buffer, needs_what_is_kept(list[i], effect, place));
          if (written && effect != Effect::consumes) stay.last_change = i;
        }
  }

  /// Notes that operation `i` needs buffer `id` loaded. If `id` must be loaded now, this ends the stays of buffers whose slots
  /// overlap that of `id`.
  Stay& stay_at(std::size_t i, BufferId id, bool needs_what_is_kept) {
    std::vector<std::size_t>& here = loaded_[buffer(id).slot.buffer];
    const auto mine = std::find_if(here.begin(), here.end(), [&](std::size_t s) { return stays_[s].buffer == id; });
    if (mine != here.end()) {
      stays_[*mine].last = i;
      return stays_[*mine];
    }
    std::size_t& free = free_[buffer(id).slot.buffer];
    std::erase_if(here, [&](std::size_t s) {
      if (!overlap(buffer(stays_[s].buffer), buffer(id))) return false;
      free = std::max(free, stays_[s].last + 1);
      return true;
    });
    here.push_back(stays_.size());
    return stays_.emplace_back(Stay{id, i, i, needs_what_is_kept, free});
  }

  static bool overlap(const PlanBuffer& x, const PlanBuffer& y) {
    return x.slot.offset < y.slot.offset + y.bytes && y.slot.offset < x.slot.offset + x.bytes;
  }

  /// Returns true if the operation needs the content at rest. If a rank writes only its own part, the other parts are needed.
  /// If several stages use a unit, the first operation of a micro-batch that writes the gradient overwrites it, and later ones
  /// add to it and need it.
  bool needs_what_is_kept(const Operation& op, Effect effect, const Location& place) {
    if (needs_content(op, effect) || place.per_shard != 0) return true;
    return effect == Effect::contributes && std::exchange(contributed_[place.buffer], op.micro_batch + 1) == op.micro_batch + 1;
  }

  /// The load or unload of a whole buffer. Its count is in 4-byte words.
  Operation transfer(const Kind& kind, StreamId stream, BufferId id, int micro_batch) const {
    std::vector<Operand> operands;
    for (const OperandSpec& spec : kind.operands)
      operands.push_back({spec.name, spec.name == OperandName::slot ? buffer(id).slot : Location(id)});
    return {.kind = &kind,
            .stream = stream,
            .micro_batch = micro_batch,
            .unit = buffer(id).owner.unit,
            .stage = buffer(id).owner.stage,
            .block = std::max(buffer(id).owner.stage - 1, -1),
            .count = buffer(id).bytes / size_of(DType::f32),
            .operands = std::move(operands)};
  }

  const Plan& plan_;
  std::vector<Stay> stays_;                              // in order of their first operations
  std::map<BufferId, std::vector<std::size_t>> loaded_;  // by the buffer of their slots: stays that have not ended
  std::map<BufferId, std::size_t> free_;                 // by the same: the operation after all stays that have ended
  std::map<BufferId, int> contributed_;                  // the last micro-batch (from 1) with a contribution to the buffer
};

}  // namespace

void add_loads(Plan& plan) {
  Loader loader(plan);
  plan.update = loader.rewrite(plan.update, {&plan.sections.forward_backward, &plan.sections.gradient_norm});
  plan.evaluation = loader.rewrite(plan.evaluation, {});
  plan.input_gradients = loader.rewrite(plan.input_gradients, {});
  plan.decoding = loader.rewrite(plan.decoding, {});
  plan.publish = loader.rewrite(plan.publish, {});
}

}  // namespace fsdp
