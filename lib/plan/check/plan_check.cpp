#include "plan/check/plan_check.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "plan/check/gradient_states.hpp"

namespace fsdp {

namespace {

/// Checks operands, order and memory.
class ListChecker : private CheckedList {
 public:
  explicit ListChecker(const CheckedList& list) : CheckedList(list) {}

  void check_operands() const {
    check_tables();
    int micro_batch = 0;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      check_operands(i, list_[i]);
      const bool is_there = list_[i].micro_batch < (&list_ == &plan_.update ? static_cast<int>(micro_batches_) : 1);
      if (list_[i].micro_batch < std::exchange(micro_batch, list_[i].micro_batch) || !is_there)
        fail(i, "is in the wrong micro-batch");
    }
  }
  /// Checks that the memory to which StageContext points for parameters and gradients is inside the plan's buffers.
  void check_tables() const {
    const auto check = [&](const Location& kept, std::size_t u, DType type, const char* what) {
      const Location place = plan_.at_work(kept);
      const std::size_t n = layout_.units()[u].padded_numel;
      if (place.buffer >= 0 && place.offset + n * size_of(type) > buffer(place.buffer).bytes)
        throw InternalError(format("the plan is not sound: {} of {}, {} elements from byte {}, goes beyond {}", what,
                                   name_of_unit(u), n, place.offset, name(place)));
    };
    for (std::size_t u = 0; u < layout_.units().size(); ++u) {
      check(plan_.whole_parameters[u], u, layout_.units()[u].types.parameter, "the parameters");
      if (!plan_.whole_gradients.empty()) check(plan_.whole_gradients[u], u, DType::f32, "the gradient");
    }
  }

  /// Returns true if the operation's unit or stage exists.
  bool has_its_subject(const Operation& op) const {
    const int last = static_cast<int>(stage_units_.size()) - 1;
    switch (op.kind->subject) {
      case Subject::nothing:
        return op.unit == -1 && op.stage == -1;
      case Subject::unit:
        return op.stage == -1 && op.unit >= 0 && op.unit < static_cast<int>(layout_.units().size());
      case Subject::first_stage:
        return op.stage == 0 && op.block == -1;
      case Subject::block:
        return op.stage > 0 && op.stage < last && op.block == op.stage - 1;
      case Subject::head:
        return op.stage == last && op.block == -1;
      case Subject::owner:
        return op.unit >= 0 ? op.stage == -1 && op.block == -1 && op.unit < static_cast<int>(layout_.units().size())
                            : op.stage > 0 && op.stage < last && op.block == op.stage - 1;
    }
    return false;
  }

  /// Checks that an operation has the operands of its kind, in order, at the places that info_of() requires, and inside their
  /// buffers on every rank.
  void check_operands(std::size_t i, const Operation& op) const {
    if (!has_its_subject(op)) fail(i, "names a unit or a stage that does not exist");
    const std::vector<std::size_t> units = units_of(op);
    std::size_t k = 0;
    for (const OperandSpec& spec : op.kind->operands) {
      const OperandInfo& info = info_of(spec.name);
      for (std::size_t index = 0; index == 0 || info.repeated; ++index) {
        const Query question = ask(op, units, index);
        const std::optional<Home> home = spec.needed && !spec.needed(question) ? std::nullopt : info.home(question);
        if (!home) break;
        if (k == op.operands.size() || op.operands[k].name != spec.name) {
          if (spec.optional) break;
          fail(i, format("does not have {}{}", info.text, info.repeated ? format(" number {}", index) : ""));
        }
        const Location& place = op.operands[k++].place;
        if (place.buffer < 0 || static_cast<std::size_t>(place.buffer) >= plan_.buffers.size())
          fail(i, "works on a buffer that does not exist");
        if (home->place.buffer >= 0 && place != home->place)
          fail(i, format("has {} in another place than the plan", info.text));
        if (home->role && buffer(place.buffer).role != *home->role)
          fail(i, format("has {} in {}, a buffer with another role", info.text, name(place)));
        const std::size_t begin = place.offset + (static_cast<std::size_t>(layout_.shards()) - 1) * place.per_shard;
        if (begin + home->bytes > buffer(place.buffer).bytes)
          fail(i, format("goes beyond {}: {} bytes from byte {}", name(place), home->bytes, begin));
      }
    }
    if (k < op.operands.size())
      fail(i, format("has an operand ({}) that its kind does not list at this position", info_of(op.operands[k].name).text));
    check_amount(i, op, units);
  }

  void check_amount(std::size_t i, const Operation& op, std::span<const std::size_t> units) const {
    const Amount amount = op.kind->amount ? op.kind->amount(ask(op, units)) : Amount();
    if (op.count != amount.count) fail(i, format("works on {} elements instead of {}", op.count, amount.count));
    if (op.type != amount.type || op.reduce_dtype != amount.reduce_dtype)
      fail(i, "has another type or reduce_dtype than its data");
    if (op.group != amount.group) fail(i, "has another group of ranks than its data");
    if (!op.accumulate) return;
    for (std::size_t k = 0; k < op.operands.size(); ++k)
      if (const Effect effect = effect_on(op, k); effect == Effect::accumulates || effect == Effect::contributes) return;
    if (op.kind->follow != protocol<&GradientStates::contribute>)
      fail(i, "accumulates, but has no operand to add to");  // without operands to accumulate into, all its units are frozen
  }

  void check_order_and_memory() const {
    check_order();
    check_memory();
  }

 private:
  void check_order() const {
    // known[i][s]: the last operation of stream s that happens before operation i, or i itself.
    std::vector<std::array<int, stream_count>> known(list_.size());
    std::array<int, stream_count> last;
    last.fill(-1);
    std::vector<int> writer(plan_.buffers.size(), -1);
    std::vector<std::vector<int>> readers(plan_.buffers.size());
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const Operation& op = list_[i];
      const auto stream = static_cast<std::size_t>(op.stream);
      known[i].fill(-1);
      const auto learn = [&](int earlier) {
        if (earlier < 0) return;
        if (earlier >= static_cast<int>(i)) fail(i, "waits for a later operation");
        for (std::size_t s = 0; s < stream_count; ++s)
          known[i][s] = std::max(known[i][s], known[static_cast<std::size_t>(earlier)][s]);
      };
      learn(last[stream]);
      for (const int wait : op.waits) learn(wait);
      known[i][stream] = static_cast<int>(i);
      const auto is_after = [&](int earlier) {
        return known[i][static_cast<std::size_t>(list_[static_cast<std::size_t>(earlier)].stream)] >= earlier;
      };
      for (std::size_t k = 0; k < op.operands.size(); ++k) {
        const Location& place = op.operands[k].place;
        const Effect effect = effect_on(op, k);
        const int from = at(writer, place);
        if (from < 0 && needs_content(op, effect) && !is_there_before(place))
          fail(i, format("reads {}, which nothing has written", name(place)));
        if (from >= 0 && !is_after(from))
          fail(i, format("uses {} and does not wait for operation {}, which writes it", name(place), from));
        if (writes(effect))
          for (const int reader : at(readers, place))
            if (!is_after(reader))
              fail(i, format("writes {} and does not wait for operation {}, which reads it", name(place), reader));
        // Transient buffers reuse memory in issue order. Only operations on one stream run in this order.
        if (buffer(place.buffer).transient && op.stream != StreamId::compute)
          fail(i, format("uses {} on another stream than compute, but other buffers share its memory", name(place)));
      }
      for (std::size_t k = 0; k < op.operands.size(); ++k)
        if (!writes(effect_on(op, k))) at(readers, op.operands[k].place).push_back(static_cast<int>(i));
      for (std::size_t k = 0; k < op.operands.size(); ++k)
        if (writes(effect_on(op, k))) {
          at(writer, op.operands[k].place) = static_cast<int>(i);
          at(readers, op.operands[k].place).clear();
        }
      last[stream] = static_cast<int>(i);
    }
  }

  /// Returns true if the place is filled before the list runs.
  bool is_there_before(const Location& place) const {
    const BufferRole role = buffer(place.buffer).role;
    return role == BufferRole::parameters || role == BufferRole::optimizer_state || role == BufferRole::cache ||
           place.buffer == plan_.tables || place.buffer == plan_.tokens || place.buffer == plan_.step;
  }

  template <class T>
  static T& at(std::vector<T>& of_buffers, const Location& place) {
    return of_buffers[static_cast<std::size_t>(place.buffer)];
  }

  /// Checks only the first micro-batch, because all micro-batches use memory in the same way.
  void check_memory() const {
    std::set<BufferId> live;
    std::size_t bytes = 0, peak = 0;
    const auto overlaps = [&](BufferId a, BufferId b) {
      const PlanBuffer &x = buffer(a), &y = buffer(b);
      return x.bytes > 0 && y.bytes > 0 && x.space == y.space && x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
    };
    const auto enter = [&](std::size_t i, BufferId id) {
      const PlanBuffer& one = buffer(id);
      if (one.offset + one.bytes > plan_.bytes_in(*one.space))
        fail(i, format("uses {}, which goes beyond the end of its space", one.name));
      if (one.offset % one.space->alignment != 0)
        fail(i, format("uses {}, which does not begin at a multiple of its space's alignment", one.name));
      for (const BufferId other : live)
        if (overlaps(id, other)) fail(i, format("uses {} while {} is in the same memory", one.name, buffer(other).name));
      live.insert(id);
      if (one.space->tier == Tier::device) bytes += one.bytes;
    };
    for (std::size_t id = 0; id < plan_.buffers.size(); ++id)
      if (!plan_.buffers[id].transient) enter(0, static_cast<BufferId>(id));
    peak = bytes;
    for (std::size_t i = 0; i < list_.size() && list_[i].micro_batch == 0; ++i) {
      const Operation& op = list_[i];
      for (const BufferId id : op.acquires) enter(i, id);
      peak = std::max(peak, bytes);
      for (const Operand& operand : op.operands)
        if (!live.contains(operand.place.buffer))
          fail(i, format("uses {}, which is not acquired yet or already freed", name(operand.place)));
      for (const BufferId id : op.frees) live.erase(id), bytes -= buffer(id).bytes;
    }
    if (&list_ == &plan_.main_list() ? peak != plan_.peak_bytes : peak > plan_.peak_bytes)
      fail(0, format("starts a list with a peak of {} bytes, but the peak of the plan is {} bytes", peak, plan_.peak_bytes));
  }
};

}  // namespace

void check_plan(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                std::size_t micro_batches, const ModelSizes* evaluated) {
  for (const auto* list : lists_of(plan)) {
    if (list->empty()) continue;
    const ModelSizes& of_list = evaluated && list == &plan.evaluation ? *evaluated : sizes;
    const CheckedList checked(plan, layout, placement, of_list, micro_batches, *list);
    const ListChecker checker(checked);
    checker.check_operands();
    if (list == &plan.update) GradientStates(checked).check();
    check_contents(checked);
    checker.check_order_and_memory();
  }
}

}  // namespace fsdp
