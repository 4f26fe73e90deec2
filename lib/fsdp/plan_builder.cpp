// The only code that reads the placement table: it turns a strategy into operations and buffers.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "fsdp/plan.hpp"

namespace fsdp {

namespace {

using enum OperationKind;
constexpr std::size_t arena_alignment = 64;  // bytes

class Builder {
 public:
  Builder(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options)
      : layout_(layout),
        options_(options),
        sizes_(sizes),
        units_(static_cast<int>(layout.units().size())),
        gathers_(placement.parameters_at_rest == Place::sharded),
        scatters_(placement.gradients_between_micro_batches == Place::sharded) {
    expect(options.micro_batches >= 1 && options.parameter_slots >= 2 && options.gradient_slots >= 1,
           "a plan needs two slots and a batch");
    expect(gathers_ == (placement.parameters_forward_to_backward == Place::sharded) && scatters_ == gathers_ &&
               (placement.optimizer_state == Place::sharded) == gathers_,
           "this row of the placement table is not built yet");
  }

  Plan build() {
    add_buffers();
    if (options_.training) {
      for (std::size_t m = 0; m < options_.micro_batches; ++m) emit_micro_batch(static_cast<int>(m));
      emit_optimizer();
    }
    emit_evaluation();
    for (auto* list : {&plan_.update, &plan_.evaluation}) {
      derive_waits(*list);
      derive_lifetimes(*list);
    }
    place_buffers();
    return std::move(plan_);
  }

 private:
  BufferId add(std::string name, BufferRole role, std::size_t bytes, bool transient = false) {
    plan_.buffers.push_back({std::move(name), role, round_up(bytes, arena_alignment), transient});
    return static_cast<BufferId>(plan_.buffers.size()) - 1;
  }

  const std::string& unit_name(int u) const { return layout_.units()[static_cast<std::size_t>(u)].name; }
  std::size_t shard_bytes(int u, DType type) const { return layout_.shard_numel(static_cast<std::size_t>(u)) * size_of(type); }

  /// A slot for the root, and `count` slots that the other units take in turn, each as large as the largest of them.
  std::vector<BufferId> add_slots(const char* letter, BufferRole role, std::size_t count) {
    std::size_t largest = 0;
    const auto bytes = [&](int u) {
      const Unit& unit = layout_.units()[static_cast<std::size_t>(u)];
      return unit.padded_numel * size_of(role == BufferRole::gathered_parameters ? unit.types.parameter : unit.types.gradient);
    };
    for (int u = 1; u < units_; ++u) largest = std::max(largest, bytes(u));
    std::vector<BufferId> slots, of_unit = {add(format("{}r", letter), role, bytes(0))};
    for (std::size_t i = 0; i < std::min(count, static_cast<std::size_t>(units_ - 1)); ++i)
      slots.push_back(add(format("{}{}", letter, i), role, largest));
    for (int u = 1; u < units_; ++u) of_unit.push_back(slots[static_cast<std::size_t>(u - 1) % slots.size()]);
    return of_unit;
  }

  void add_buffers() {
    for (int u = 0; u < units_; ++u)
      plan_.parameter_shard.push_back(add("shard " + unit_name(u), BufferRole::parameters, shard_bytes(u, DType::f32)));
    plan_.whole_parameters =
        gathers_ ? add_slots("P", BufferRole::gathered_parameters, options_.parameter_slots) : plan_.parameter_shard;
    if (options_.training) {
      for (int u = 0; u < units_; ++u)
        plan_.gradient_shard.push_back(add("gradient " + unit_name(u), BufferRole::gradients, shard_bytes(u, DType::f32)));
      plan_.whole_gradients =
          scatters_ ? add_slots("Q", BufferRole::unreduced_gradients, options_.gradient_slots) : plan_.gradient_shard;
      for (const std::string& name : options_.optimizer_states)
        plan_.optimizer_state.push_back(
            add(name, BufferRole::optimizer_state, layout_.total_shard_numel() * size_of(DType::f32)));
    }
    plan_.inputs = add("inputs", BufferRole::batch, sizes_.batch);
    plan_.targets = add("targets", BufferRole::batch, sizes_.batch);
    plan_.tables = add("tables", BufferRole::batch, sizes_.tables);
    plan_.scratch = add("scratch", BufferRole::scratch, sizes_.scratch);
    const int blocks = static_cast<int>(sizes_.blocks);
    for (int b = 0; b <= (options_.training ? blocks : 1); ++b)
      x_.push_back(add(format("x{}", b), BufferRole::activations, sizes_.activation, true));
    const bool keep = options_.training && !options_.checkpoint_activations;
    for (int b = 0; b < (keep ? blocks : 1); ++b)
      saved_.push_back(add(keep ? format("saved{}", b) : std::string("saved"), BufferRole::activations, sizes_.saved, true));
    if (options_.training) dx_ = add("dx", BufferRole::activations, sizes_.activation, true);
  }

  BufferId saved(int block) const { return saved_[saved_.size() == 1 ? 0 : static_cast<std::size_t>(block)]; }
  int unit_of(int block) const { return static_cast<int>(layout_.unit_of_block(static_cast<std::size_t>(block))); }
  BufferId weights(int unit) const { return plan_.whole_parameters[static_cast<std::size_t>(unit)]; }
  BufferId gradients(int unit) const { return plan_.whole_gradients[static_cast<std::size_t>(unit)]; }

  Operation& emit(std::vector<Operation>& list, Operation op) {
    op.micro_batch = micro_batch_;
    return list.emplace_back(std::move(op));
  }

  void emit_gather(std::vector<Operation>& list, int unit) {
    if (!gathers_ || unit >= units_ || unit < 0) return;
    emit(list, {.kind = all_gather,
                .stream = StreamId::gather,
                .unit = unit,
                .reads = {plan_.parameter_shard[static_cast<std::size_t>(unit)]},
                .writes = {weights(unit)}});
  }

  void emit_release(std::vector<Operation>& list, int unit) {
    if (gathers_)
      emit(list, {.kind = release, .stream = StreamId::compute, .unit = unit, .reads = {weights(unit)}, .writes = {}});
  }

  /// From the batch to the input of the head. The last unit stays gathered: backward needs it first.
  void emit_forward(std::vector<Operation>& list, bool training) {
    emit(list, {.kind = read_batch, .stream = StreamId::compute, .reads = {}, .writes = {plan_.inputs, plan_.targets}});
    emit_gather(list, 0);
    emit_gather(list, 1);
    const auto x = [&](int b) { return x_[static_cast<std::size_t>(training ? b : b % 2)]; };
    emit(list, {.kind = embedding_forward, .stream = StreamId::compute, .reads = {weights(0), plan_.inputs}, .writes = {x(0)}});
    for (int b = 0; b < static_cast<int>(sizes_.blocks); ++b) {
      const bool first_of_unit = b == 0 || unit_of(b) != unit_of(b - 1);
      if (first_of_unit && b > 0) emit_release(list, unit_of(b - 1));
      if (first_of_unit) emit_gather(list, unit_of(b) + 1);  // prefetch of one
      emit(list, {.kind = block_forward,
                  .stream = StreamId::compute,
                  .block = b,
                  .reads = {weights(unit_of(b)), x(b)},
                  .writes = {x(b + 1), training ? saved(b) : saved(0), plan_.scratch}});
    }
    if (!training && units_ > 1) emit_release(list, units_ - 1);
  }

  void emit_micro_batch(int m) {
    micro_batch_ = m;
    std::vector<Operation>& list = plan_.update;
    const int blocks = static_cast<int>(sizes_.blocks);
    const bool adds = m > 0;
    const bool local_adds = adds && !scatters_;  // whole gradients are summed here, sharded ones by the reduction
    emit_forward(list, true);
    emit(list, {.kind = head,
                .stream = StreamId::compute,
                .unit = 0,
                .accumulate = local_adds,
                .reads = {weights(0), x_.back(), plan_.targets},
                .writes = {dx_, gradients(0), plan_.scratch}});
    for (int b = blocks - 1; b >= 0; --b) {
      const int unit = unit_of(b);
      if (b == blocks - 1 || unit != unit_of(b + 1)) emit_gather(list, unit > 1 ? unit - 1 : -1);  // prefetch of one
      if (options_.checkpoint_activations && b + 1 < blocks)  // what the last block saved still lies there
        emit(list, {.kind = recompute,
                    .stream = StreamId::compute,
                    .block = b,
                    .reads = {weights(unit), x_[static_cast<std::size_t>(b)]},
                    .writes = {saved(b), plan_.scratch}});
      emit(list, {.kind = block_backward,
                  .stream = StreamId::compute,
                  .unit = unit,
                  .block = b,
                  .accumulate = local_adds,
                  .reads = {weights(unit), x_[static_cast<std::size_t>(b)], saved(b), dx_},
                  .writes = {dx_, gradients(unit), plan_.scratch}});
      if (b == 0 || unit_of(b - 1) != unit) {
        emit_release(list, unit);
        emit_reduce(unit, adds);
      }
    }
    emit(list, {.kind = embedding_backward,
                .stream = StreamId::compute,
                .unit = 0,
                .accumulate = local_adds,
                .reads = {weights(0), plan_.inputs, dx_},
                .writes = {gradients(0)}});
    emit_release(list, 0);
    emit_reduce(0, adds);
  }

  void emit_reduce(int unit, bool adds) {
    const BufferId whole = gradients(unit), shard = plan_.gradient_shard[static_cast<std::size_t>(unit)];
    if (scatters_)
      emit(plan_.update, {.kind = reduce_scatter,
                          .stream = StreamId::reduce,
                          .unit = unit,
                          .accumulate = adds,
                          .reads = {whole},
                          .writes = {shard}});
    else if (micro_batch_ + 1 == static_cast<int>(options_.micro_batches))
      emit(plan_.update, {.kind = all_reduce, .stream = StreamId::reduce, .unit = unit, .reads = {whole}, .writes = {shard}});
  }

  void emit_optimizer() {
    emit(plan_.update, {.kind = gradient_norm, .stream = StreamId::reduce, .reads = plan_.gradient_shard, .writes = {}});
    norm_ = static_cast<int>(plan_.update.size()) - 1;
    Operation& op =
        emit(plan_.update,
             {.kind = optimizer, .stream = StreamId::compute, .reads = plan_.gradient_shard, .writes = plan_.parameter_shard});
    op.writes.insert(op.writes.end(), plan_.optimizer_state.begin(), plan_.optimizer_state.end());
  }

  void emit_evaluation() {
    micro_batch_ = 0;
    emit_forward(plan_.evaluation, false);
    emit(plan_.evaluation, {.kind = head,
                            .stream = StreamId::compute,
                            .reads = {weights(0), x_[sizes_.blocks % 2], plan_.targets},
                            .writes = {plan_.scratch}});
    emit_release(plan_.evaluation, 0);
  }

  /// An operation waits for the last writer of what it reads, and for the last writer and all later readers of what it writes,
  /// where those are on another stream and are not already known to be done: `seen[s][t]` is the last operation of stream t
  /// that stream s knows of.
  void derive_waits(std::vector<Operation>& list) const {
    std::array<std::array<int, stream_count>, stream_count> seen;
    for (auto& row : seen) row.fill(-1);
    std::vector<std::array<int, stream_count>> known_at(list.size());  // what the operation's stream knew when it ran
    std::vector<int> last_writer(plan_.buffers.size(), -1);
    std::vector<std::vector<int>> readers(plan_.buffers.size());
    for (int i = 0; i < static_cast<int>(list.size()); ++i) {
      Operation& op = list[static_cast<std::size_t>(i)];
      const std::size_t mine = static_cast<std::size_t>(op.stream);
      std::set<int, std::greater<>> candidates;  // latest first: it may imply the others
      for (const BufferId b : op.reads)
        if (last_writer[static_cast<std::size_t>(b)] >= 0) candidates.insert(last_writer[static_cast<std::size_t>(b)]);
      for (const BufferId b : op.writes) {
        if (last_writer[static_cast<std::size_t>(b)] >= 0) candidates.insert(last_writer[static_cast<std::size_t>(b)]);
        candidates.insert(readers[static_cast<std::size_t>(b)].begin(), readers[static_cast<std::size_t>(b)].end());
      }
      if (op.kind == optimizer) candidates.insert(norm_);
      for (const int c : candidates) {
        const std::size_t theirs = static_cast<std::size_t>(list[static_cast<std::size_t>(c)].stream);
        if (theirs == mine || seen[mine][theirs] >= c) continue;
        op.waits.push_back(c);
        for (std::size_t t = 0; t < stream_count; ++t)
          seen[mine][t] = std::max(seen[mine][t], known_at[static_cast<std::size_t>(c)][t]);
      }
      std::sort(op.waits.begin(), op.waits.end());
      seen[mine][mine] = i;
      known_at[static_cast<std::size_t>(i)] = seen[mine];
      for (const BufferId b : op.reads) readers[static_cast<std::size_t>(b)].push_back(i);
      for (const BufferId b : op.writes) {
        last_writer[static_cast<std::size_t>(b)] = i;
        readers[static_cast<std::size_t>(b)].clear();
      }
    }
  }

  /// A transient buffer lives from its first to its last use inside a micro-batch.
  void derive_lifetimes(std::vector<Operation>& list) const {
    std::map<std::pair<int, BufferId>, std::pair<std::size_t, std::size_t>> uses;
    for (std::size_t i = 0; i < list.size(); ++i)
      for (const auto* ids : {&list[i].reads, &list[i].writes})
        for (const BufferId b : *ids)
          if (plan_.buffers[static_cast<std::size_t>(b)].transient)
            uses.try_emplace({list[i].micro_batch, b}, i, i).first->second.second = i;
    for (const auto& [key, use] : uses) {
      list[use.first].acquires.push_back(key.second);
      list[use.second].frees.push_back(key.second);
    }
  }

  /// Buffers of the whole run one after another; above them transient ones, each at the lowest place that is free while it
  /// lives in the first micro-batch (all micro-batches use them alike). Evaluation uses a subset of buffers that are alive
  /// together in an update.
  void place_buffers() {
    std::size_t used = 0, slots = 0;
    for (PlanBuffer& buffer : plan_.buffers)
      if (!buffer.transient) {
        std::size_t& end = is_slot(buffer.role) ? slots : used;
        buffer.offset = std::exchange(end, end + buffer.bytes);
      }
    plan_.slot_bytes = slots;
    std::size_t top = used, live_bytes = 0, peak = 0;
    std::vector<BufferId> live;
    for (const Operation& op : plan_.update.empty() ? plan_.evaluation : plan_.update) {
      if (op.micro_batch > 0) break;
      for (const BufferId id : op.acquires) {
        PlanBuffer& buffer = plan_.buffers[static_cast<std::size_t>(id)];
        buffer.offset = used;
        for (const BufferId other : live) {  // `live` is kept in order of offset
          const PlanBuffer& neighbour = plan_.buffers[static_cast<std::size_t>(other)];
          if (buffer.offset + buffer.bytes <= neighbour.offset) break;
          buffer.offset = std::max(buffer.offset, neighbour.offset + neighbour.bytes);
        }
        live.insert(
            std::find_if(live.begin(), live.end(),
                         [&](BufferId other) { return plan_.buffers[static_cast<std::size_t>(other)].offset > buffer.offset; }),
            id);
        live_bytes += buffer.bytes;
        top = std::max(top, buffer.offset + buffer.bytes);
      }
      peak = std::max(peak, live_bytes);
      for (const BufferId id : op.frees) {
        live.erase(std::find(live.begin(), live.end(), id));
        live_bytes -= plan_.buffers[static_cast<std::size_t>(id)].bytes;
      }
    }
    plan_.arena_bytes = top;
    plan_.peak_bytes = used + slots + peak;
  }

  const Layout& layout_;
  const PlanOptions& options_;
  const ModelSizes& sizes_;
  const int units_;
  const bool gathers_, scatters_;
  Plan plan_;
  int micro_batch_ = 0, norm_ = -1;
  std::vector<BufferId> x_, saved_;
  BufferId dx_ = -1;
};

}  // namespace

Plan build_plan(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options) {
  return Builder(layout, placement, sizes, options).build();
}

}  // namespace fsdp
