#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/format.hpp"
#include "plan/check/checked_list.hpp"

namespace fsdp {

namespace {

using enum OperandName;

class Contents : private CheckedList {
 public:
  explicit Contents(const CheckedList& list)
      : CheckedList(list), pieces_(plan_.buffers.size()), lost_(plan_.buffers.size(), false), unloaded_(plan_.buffers.size()) {
    if (&list_ != &plan_.publish) return;
    for (std::size_t u = 0; u < layout_.units().size(); ++u) {
      if (plan_.master[u].buffer != plan_.parameters[u].buffer) unrounded_.insert(u);
      if (plan_.parameters[u].per_shard != 0) unpublished_.insert(u);
    }
  }

  void check() {
    for (at_ = 0; at_ < list_.size(); ++at_)
      if (list_[at_].find(stored))
        follow_transfer(list_[at_]);
      else
        follow(list_[at_]);
    at_ = list_.size() - 1;
    for (const auto& of_buffer : pieces_)
      for (const Piece& piece : of_buffer) {
        if (must_be_released(piece)) fail(format("is the last operation, but {} is still gathered", text_of(piece.content)));
        if (is_unsaved(piece)) fail(format("is the last operation, but {} is not unloaded", buffer(piece.stored).name));
      }
    for (const auto* stale : {&unrounded_, &unpublished_})
      if (!stale->empty())
        fail(format("is the last operation, but the parameters of {} are out of date", name_of_unit(*stale->begin())));
    const auto gives = [&](OperandName name) {
      return std::any_of(list_.begin(), list_.end(), [&](const Operation& op) { return op.find(name) != nullptr; });
    };
    if (&list_ == &plan_.evaluation && !gives(report)) fail("is the last operation, but the loss is not reported");
    if (&list_ == &plan_.decoding && !gives(logits)) fail("is the last operation, but there are no logits");
    if (&list_ == &plan_.input_gradients && !gives_gradient_of_inputs())
      fail("is the last operation, but does not leave the gradient of the inputs");
    if (&list_ == &plan_.evaluation || &list_ == &plan_.input_gradients) check_that_state_stays();
  }

 private:
  /// The state of a range of a buffer. `stored` is the offloaded buffer that the range is a copy of. `changed` is true if an
  /// operation has written to the range since the load.
  struct Piece {
    std::size_t begin, end;
    Content content;
    BufferId stored = -1;
    bool changed = false;
    int contributed = -1;  // the last micro-batch with a contribution to this gradient
  };

  [[noreturn]] void fail(const std::string& why) const { CheckedList::fail(at_, why); }

  bool gives_gradient_of_inputs() const {
    const auto is_it = [](const Piece& piece) { return piece.content == Content{dx, 0, 0}; };
    return std::any_of(pieces_.begin(), pieces_.end(), [&](const auto& all) { return std::ranges::any_of(all, is_it); });
  }
  /// Only the beginning of an evaluation may run, so no operation may change what later lists need.
  void check_that_state_stays() {
    for (at_ = 0; at_ < list_.size(); ++at_)
      for (std::size_t k = 0; k < list_[at_].operands.size(); ++k)
        if (const Location& place = list_[at_].operands[k].place;
            writes(effect_on(list_[at_], k)) && !takes_turns(buffer(place.buffer)))
          fail(format("changes {}", name(place)));
  }

  /// Returns true for buffers that several units, stages or micro-batches share one after another. Other buffers have the same
  /// content for the whole list.
  static bool takes_turns(const PlanBuffer& buffer) {
    switch (buffer.role) {
      case BufferRole::gathered_parameters:
      case BufferRole::unreduced_gradients:
      case BufferRole::activations:
      case BufferRole::scratch:
      case BufferRole::batch:
      case BufferRole::loaded:
        return true;
      case BufferRole::parameters:
      case BufferRole::gradients:
      case BufferRole::optimizer_state:
      case BufferRole::cache:
        return false;
    }
    return true;
  }
  bool may_be_lost(BufferId id) const { return buffer(id).role == BufferRole::unreduced_gradients; }
  bool is_unsaved(const Piece& piece) const { return piece.changed && !may_be_lost(piece.stored); }
  bool must_be_released(const Piece& piece) const {
    return piece.stored < 0 && (piece.content.what == weights || piece.content.what == matrices);
  }
  std::string text_of(const Content& content) const {
    const std::string_view text = info_of(content.what).text;
    const bool of_unit = content.what == weights || content.what == gradient || content.what == master ||
                         content.what == direction || content.what == matrices;
    if (of_unit) return format("{} of {}", text, name_of_unit(static_cast<std::size_t>(content.owner)));
    return content.owner < 0 ? format("{} of micro-batch {}", text, content.micro_batch)
                             : format("{} of stage {} in micro-batch {}", text, content.owner, content.micro_batch);
  }

  Piece* find(const Location& place, std::size_t bytes) {
    for (Piece& piece : pieces_[static_cast<std::size_t>(place.buffer)])
      if (piece.begin <= place.offset && place.offset + bytes <= piece.end) return &piece;
    return nullptr;
  }

  /// Marks the content of the range as overwritten.
  void erase(BufferId id, std::size_t begin, std::size_t end) {
    std::vector<Piece>& here = pieces_[static_cast<std::size_t>(id)];
    std::vector<Piece> left;
    for (const Piece& piece : here) {
      if (piece.end <= begin || end <= piece.begin) {
        left.push_back(piece);
        continue;
      }
      if (is_unsaved(piece)) fail(format("overwrites {}, which is not unloaded", buffer(piece.stored).name));
      if (must_be_released(piece)) fail(format("overwrites {}, which is not released", text_of(piece.content)));
      if (piece.changed) lost_[static_cast<std::size_t>(piece.stored)] = true;
    }
    here = std::move(left);
  }

  /// The offloaded buffer, among those of the operation's units, that is loaded into this place.
  BufferId stored_at(const Location& place, std::span<const std::size_t> units) const {
    for (std::size_t id = 0; id < plan_.buffers.size(); ++id) {
      const PlanBuffer& of = plan_.buffers[id];
      if (of.slot.buffer == place.buffer && of.slot.offset <= place.offset && place.offset < of.slot.offset + of.bytes &&
          std::find(units.begin(), units.end(), static_cast<std::size_t>(of.owner.unit)) != units.end())
        return static_cast<BufferId>(id);
    }
    fail(format("works on {}, but no buffer of its unit is ever loaded there", name(place)));
  }

  void follow(const Operation& op) {
    const std::vector<std::size_t> units = units_of(op);
    std::array<std::size_t, 64> seen{};  // the number of operands so far, by name
    for (std::size_t k = 0; k < op.operands.size(); ++k) {
      const auto& [operand, place] = op.operands[k];
      const OperandInfo& info = info_of(operand);
      const Query question = ask(op, units, seen[static_cast<std::size_t>(operand)]++);
      follow_parameters(op, operand, effect_on(op, k), place, question);
      if (buffer(place.buffer).is_offloaded()) fail(format("works on {}, which is offloaded", name(place)));
      if (!takes_turns(buffer(place.buffer))) continue;
      const std::size_t bytes = info.home(question)->bytes;
      if (bytes == 0 && info.holds) continue;  // a layer that saves no activations
      const Effect effect = effect_on(op, k);
      if (buffer(place.buffer).role == BufferRole::loaded)
        follow_loaded(op, effect, place, stored_at(place, units));
      else if (info.holds)
        follow_content(op, effect, place, bytes, info.holds(question),
                       info.leaves ? info.leaves(question) : info.holds(question));
      else if (writes(effect))
        erase(place.buffer, place.offset, place.offset + bytes);
    }
  }

  /// If parameters are whole at rest and a rank has changed its own part, the other ranks' parts are out of date until they are
  /// gathered.
  void follow_parameters(const Operation& op, OperandName operand, Effect effect, const Location& place,
                         const Query& question) {
    if (operand == weights) {
      const std::size_t u = question.units[question.index];
      if (writes(effect)) unpublished_.erase(u);
      if (unpublished_.contains(u)) fail(format("finds parameters of {} that are out of date", name_of_unit(u)));
    } else if (operand == part || operand == master) {
      const auto u = static_cast<std::size_t>(op.unit);
      if (operand == part && writes(effect)) unrounded_.erase(u);
      if (operand == part && unrounded_.contains(u))
        fail(format("finds parameters of {} that are out of date", name_of_unit(u)));
      if (writes(effect) && place.per_shard != 0) unpublished_.insert(u);
    }
  }

  void follow_content(const Operation& op, Effect effect, const Location& place, std::size_t bytes, const Content& holds,
                      const Content& leaves) {
    Piece* piece = find(place, bytes);
    const bool is_its_own = piece && piece->content == holds;
    if (needs_content(op, effect) && !is_its_own)
      fail(format("finds {}, but needs {}", piece ? text_of(piece->content) : "nothing", text_of(holds)));
    const int contributed = effect == Effect::contributes ? op.micro_batch : -1;
    if (effect == Effect::contributes && is_its_own && (op.accumulate || piece->contributed == op.micro_batch)) {
      piece->contributed = contributed;
      return;
    }
    if (!writes(effect)) return;
    if (is_its_own && (effect == Effect::changes || effect == Effect::accumulates)) {
      piece->content = leaves;
      return;
    }
    if (effect == Effect::consumes) piece->content.what = scratch;  // the content is not needed any more
    erase(place.buffer, place.offset, place.offset + bytes);
    if (effect != Effect::consumes && effect != Effect::clobbers)
      pieces_[static_cast<std::size_t>(place.buffer)].push_back(
          {place.offset, place.offset + bytes, leaves, -1, false, contributed});
  }

  /// An operation must find its unit's data loaded, unless it overwrites all of it.
  void follow_loaded(const Operation& op, Effect effect, const Location& place, BufferId id) {
    const PlanBuffer& of = buffer(id);
    Piece* piece = find(of.slot, of.bytes);
    if (piece && piece->stored != id) piece = nullptr;
    const bool is_first = effect != Effect::contributes || !piece || piece->contributed != op.micro_batch;
    const bool is_new = writes(effect) && effect != Effect::changes && effect != Effect::consumes && !op.accumulate &&
                        is_first && place.per_shard == 0;
    if (!piece && !is_new)
      fail(writes(effect) ? format("changes {}, which is not loaded", of.name)
                          : format("reads {}, which is not loaded", of.name));
    if (!writes(effect)) return;
    if (!piece) {
      erase(of.slot.buffer, of.slot.offset, of.slot.offset + of.bytes);
      piece = &pieces_[static_cast<std::size_t>(of.slot.buffer)].emplace_back(
          Piece{of.slot.offset, of.slot.offset + of.bytes, {slot, of.owner.unit, -1}, id});
    }
    if (is_new) lost_[static_cast<std::size_t>(id)] = false;
    if (effect == Effect::contributes) piece->contributed = op.micro_batch;
    if (effect != Effect::consumes) piece->changed = true;
  }

  /// Only loads and unloads may access offloaded state.
  void follow_transfer(const Operation& op) {
    const bool loads = op.operands.front().name == stored;
    const BufferId id = op.at(stored).buffer;
    const PlanBuffer& of = buffer(id);
    if (!of.is_offloaded() || op.at(stored) != Location(id) || op.at(slot) != of.slot)
      fail("does not copy between an offloaded buffer and the slot of that buffer");
    if (of.owner != Owner{op.unit, op.stage}) fail(format("moves {}, which belongs to another unit or stage", of.name));
    if (buffer(of.slot.buffer).role != BufferRole::loaded) return follow_transfer_of_content(id, loads);
    Piece* piece = find(of.slot, of.bytes);
    if (piece && piece->stored != id) piece = nullptr;
    if (!loads) {
      if (!piece) fail(format("unloads {}, which is not loaded", of.name));
      piece->changed = false;
      return;
    }
    if (piece && piece->changed) fail(format("loads {}, which has changed and is not unloaded", of.name));
    if (lost_[static_cast<std::size_t>(id)]) fail(format("loads {}, whose last change was not unloaded", of.name));
    erase(of.slot.buffer, of.slot.offset, of.slot.offset + of.bytes);
    pieces_[static_cast<std::size_t>(of.slot.buffer)].push_back(
        {of.slot.offset, of.slot.offset + of.bytes, {slot, of.owner.unit, -1}, id});
  }

  /// A buffer whose content changes in the list, such as the input of a block: a load puts back what was unloaded last.
  void follow_transfer_of_content(BufferId id, bool loads) {
    const PlanBuffer& of = buffer(id);
    std::optional<Piece>& kept = unloaded_[static_cast<std::size_t>(id)];
    if (loads) {
      if (!kept) fail(format("loads {}, which was not unloaded", of.name));
      erase(of.slot.buffer, of.slot.offset, of.slot.offset + of.bytes);
      pieces_[static_cast<std::size_t>(of.slot.buffer)].push_back(*kept);
    } else {
      const Piece* const piece = find(of.slot, 1);
      if (!piece) fail(format("unloads {}, whose slot is empty", of.name));
      kept = *piece;
    }
  }

  std::size_t at_ = 0;                             // index of the current operation
  std::vector<std::vector<Piece>> pieces_;         // of each buffer
  std::set<std::size_t> unrounded_, unpublished_;  // units with parameters that must still be rounded, or gathered
  std::vector<bool> lost_;                         // of each offloaded buffer: overwritten in its slot before it was unloaded
  std::vector<std::optional<Piece>> unloaded_;     // of each offloaded buffer whose content changes in the list
};

}  // namespace

void check_contents(const CheckedList& list) { Contents(list).check(); }

}  // namespace fsdp
