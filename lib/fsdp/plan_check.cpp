#include "fsdp/plan_check.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "fsdp/checked_list.hpp"
#include "fsdp/plan_check_gradients.hpp"

namespace fsdp {

namespace {

using enum OperationKind;

/// All rules but those of gradients.
class ListChecker : private CheckedList {
 public:
  ListChecker(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
              std::size_t micro_batches, const std::vector<Operation>& list)
      : CheckedList(plan, layout, placement, sizes, micro_batches, list) {
    for (std::size_t id = 0; id < plan.buffers.size(); ++id)
      if (plan.buffers[id].role == BufferRole::loaded) in_slots_[static_cast<BufferId>(id)];
    for (std::size_t id = 0; id < plan.buffers.size(); ++id)
      if (plan.buffers[id].on_host()) in_slots_[plan.buffers[id].slot.buffer].push_back(static_cast<BufferId>(id));
  }

  void check() const {
    check_tables();
    check_operands();
    check_order();
    check_gathers();
    check_turns();
    check_loads();
    check_memory();
  }

 private:
  /// What stages reach through the model's tables lies in its buffers.
  void check_tables() const {
    const auto check = [&](const Location& place, std::size_t u, DType type, const char* what) {
      if (place.buffer >= 0 && place.offset + whole_numel(u) * size_of(type) > buffer(place.buffer).bytes)
        throw InternalError(format("the plan is not sound: {} of {}, {} elements from byte {}, goes beyond {}", what,
                                   layout_.units()[u].name, whole_numel(u), place.offset, name(place)));
    };
    for (std::size_t u = 0; u < layout_.units().size(); ++u) {
      check(whole_parameters_[u], u, layout_.units()[u].types.parameter, "the parameters");
      if (!whole_gradients_.empty()) check(whole_gradients_[u], u, DType::f32, "the gradient");
    }
  }

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
        if (earlier >= static_cast<int>(i)) fail(i, "waits for what comes later");
        for (std::size_t s = 0; s < stream_count; ++s)
          known[i][s] = std::max(known[i][s], known[static_cast<std::size_t>(earlier)][s]);
      };
      learn(last[stream]);
      for (const int wait : op.waits) learn(wait);
      known[i][stream] = static_cast<int>(i);
      const auto is_after = [&](int earlier) {
        return known[i][static_cast<std::size_t>(list_[static_cast<std::size_t>(earlier)].stream)] >= earlier;
      };
      for (const Location& place : op.reads) {
        const int from = at(writer, place);
        if (from < 0 && !is_there_before(place)) fail(i, format("reads {}, which nothing has written", name(place)));
        if (from >= 0 && !is_after(from))
          fail(i, format("reads {} and does not wait for operation {}, which writes it", name(place), from));
      }
      // Transient buffers share memory in issue order, which is the order of one stream alone.
      for (const auto* places : {&op.reads, &op.writes})
        for (const Location& place : *places)
          if (buffer(place.buffer).transient && op.stream != StreamId::compute)
            fail(i, format("uses {}, whose memory others use, on a stream of its own", name(place)));
      for (const Location& place : op.writes) {
        const int from = at(writer, place);
        if (from >= 0 && !is_after(from))
          fail(i, format("writes {} and does not wait for operation {}, which writes it before", name(place), from));
        for (const int reader : at(readers, place))
          if (!is_after(reader))
            fail(i, format("writes {} and does not wait for operation {}, which reads it", name(place), reader));
      }
      for (const Location& place : op.reads) at(readers, place).push_back(static_cast<int>(i));
      for (const Location& place : op.writes) {
        at(writer, place) = static_cast<int>(i);
        at(readers, place).clear();
      }
      last[stream] = static_cast<int>(i);
    }
  }

  /// What is filled before the list runs.
  bool is_there_before(const Location& place) const {
    const BufferRole role = buffer(place.buffer).role;
    return role == BufferRole::parameters || role == BufferRole::optimizer_state || role == BufferRole::cache ||
           place.buffer == plan_.tables;
  }

  template <class T>
  static T& at(std::vector<T>& of_buffers, const Location& place) {
    return of_buffers[static_cast<std::size_t>(place.buffer)];
  }

  /// `n` elements from `place` lie in its buffer, on every rank.
  void check_extent(std::size_t i, const Location& place, std::size_t n, DType type) const {
    const std::size_t begin = place.offset + (static_cast<std::size_t>(layout_.shards()) - 1) * place.per_shard;
    if (begin + n * size_of(type) > buffer(place.buffer).bytes)
      fail(i, format("goes beyond {}: {} elements from byte {}", name(place), n, begin));
  }

  /// Where sums go in a tree, gradients of a micro-batch come from where they are whole.
  void check_sum(std::size_t i, const Operation& op) const {
    const auto u = static_cast<std::size_t>(op.unit);
    if (!plan_.sums_in_a_tree) fail(i, "sums up gradients, which reductions do in this plan");
    const bool from_whole = op.reads[0] == whole_gradients_[u];
    if (op.kind == reduce_scatter ? !from_whole : !from_whole && sum_at(u, op.reads[0]) < 0)
      fail(i, "does not have the gradient where the plan has it");
    const bool stays = op.kind == all_reduce && from_whole;  // in place
    if (!stays && sum_at(u, op.writes[0]) < 0) fail(i, "does not have its sum where the plan has it");
    if (op.kind != sum_gradients) return;
    if (op.accumulate && (op.reads.size() != 2 || op.reads[1] != op.writes[0])) fail(i, "adds to what it does not read");
    if (op.count != layout_.shard_numel(u) || op.type != DType::f32) fail(i, "adds a part");
    for (const Location& place : {op.reads[0], op.writes[0]}) check_extent(i, place, op.count, op.type);
  }

  /// The ranks among which a collective has to be: those that have the parts, or those that have the same part.
  GroupAxis group_of(const Operation& op) const {
    if (op.quantity == Quantity::loss) return GroupAxis::world;
    const bool of_a_unit = op.quantity == Quantity::gradients || op.quantity == Quantity::directions;
    if (op.kind != all_reduce || !of_a_unit) return GroupAxis::shard;
    return layout_.units()[static_cast<std::size_t>(op.unit)].sharded ? GroupAxis::replicate : GroupAxis::world;
  }

  /// Operations work where their operands say. What a stage, the norm or a save finds through the tables of the plan must be
  /// there, and all of it.
  void check_operands() const {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const Operation& op = list_[i];
      for (const auto* places : {&op.reads, &op.writes})
        for (const Location& place : *places)
          if (place.buffer < 0 || static_cast<std::size_t>(place.buffer) >= plan_.buffers.size())
            fail(i, "works on a buffer that is not there");
      const auto u = static_cast<std::size_t>(op.unit);
      const auto shards = static_cast<std::size_t>(op.unit < 0 ? 1 : layout_.units()[u].shards);
      const auto expect_at = [&](const std::vector<Location>& places, std::size_t n, const Location& where, const char* what) {
        if (places.size() <= n || places[n] != where) fail(i, format("does not have {} where the plan has it", what));
      };
      if (const int stage = stage_of(op); stage >= 0)
        for (const std::size_t unit : stage_units_[static_cast<std::size_t>(stage)]) check_named(i, op, unit);
      if (is_collective(op.kind)) {
        if (op.reads.size() != 1 || op.writes.size() != 1) fail(i, "moves not one thing to one place");
        if (op.unit >= 0 && op.count != layout_.shard_numel(u)) fail(i, "moves another number of elements than a rank has");
        check_extent(i, op.reads[0], op.kind == reduce_scatter ? shards * op.count : op.count, op.type);
        check_extent(i, op.writes[0], op.kind == all_gather ? shards * op.count : op.count, op.type);
        if (op.kind == all_reduce && op.reads[0] != op.writes[0]) fail(i, "is not in place");
        if (op.group != group_of(op)) fail(i, "is among other ranks than those that have what it needs");
        if (op.kind != all_gather && op.type != DType::f32 && op.travel != DType::f32) fail(i, "rounds what is not fp32");
      }
      if (op.kind == all_gather && op.quantity == Quantity::parameters) {
        expect_at(op.reads, 0, parameters_[u], "this rank's part");
        expect_at(op.writes, 0, whole_parameters_[u], "the whole");
        if (op.type != layout_.units()[u].types.parameter) fail(i, "moves another type than the unit's");
      }
      if (op.kind == sum_gradients || (is_collective(op.kind) && op.quantity == Quantity::gradients && plan_.sums_in_a_tree)) {
        check_sum(i, op);
      } else if (is_collective(op.kind) && op.quantity == Quantity::gradients) {
        expect_at(op.reads, 0, op.kind == reduce_scatter ? whole_gradients_[u] : wide_gradients_[u], "the gradient");
        expect_at(op.writes, 0, wide_gradients_[u], "this rank's gradient");
      }
      check_cache(i, op);
      check_documents(i, op);
      if (op.kind == clear) {
        expect_at(op.writes, 0, whole_gradients_[u], "the gradient");
        if (op.count != whole_numel(u)) fail(i, "clears a part");
      }
      if (op.kind == add_squares) {
        expect_at(op.reads, 0, wide_gradients_[u], "the gradient");
        if (op.count != layout_.shard_numel(u)) fail(i, "counts a part");
      }
      if (op.kind == clip_values) {
        expect_at(op.reads, 1, wide_gradients_[u], "the gradient");
        expect_at(op.writes, 0, wide_gradients_[u], "the gradient");
        if (op.count != layout_.shard_numel(u)) fail(i, "clips a part");
      }
      if (op.kind == round) {
        expect_at(op.reads, 0, master_[u], "the fp32 parameters");
        expect_at(op.writes, 0, parameters_[u], "this rank's part");
        if (op.count != layout_.shard_numel(u) || op.type != layout_.units()[u].types.parameter) fail(i, "rounds a part");
      }
      if (op.kind == widen || op.kind == round_at_random) check_kept(i, op);
      if (op.kind == statistics || op.kind == directions) expect_at(op.reads, 1, wide_gradients_[u], "the gradient");
      if (op.kind == statistics) expect_at(op.reads, 2, wide_master_[u], "the fp32 parameters");
      if (op.kind == statistics || op.kind == directions || op.kind == optimizer) {
        const std::vector<BufferId>& states = plan_.optimizer_state[u];
        const std::size_t others = op.kind == optimizer && master_[u] != parameters_[u] ? 2 : 1;
        for (std::size_t k = 0; op.writes.size() > others && k < states.size(); ++k)
          expect_at(op.writes, others + k, plan_.at_work(states[k]), "a state");
      }
      if (op.kind == optimizer) {
        const bool copies = master_[u] != parameters_[u];
        expect_at(op.writes, 0, wide_master_[u], "the fp32 parameters");
        if (copies) expect_at(op.writes, 1, parameters_[u], "this rank's part");
        if (!layout_.units()[u].rule->whole.work) expect_at(op.reads, 1, wide_gradients_[u], "the gradient");
      }
    }
  }

  /// What a block has kept of earlier tokens, it finds in its own cache, which nothing else touches.
  void check_cache(std::size_t i, const Operation& op) const {
    const auto caches_in = [&](const std::vector<Location>& places) {
      std::vector<Location> caches;
      for (const Location& place : places)
        if (buffer(place.buffer).role == BufferRole::cache) caches.push_back(place);
      return caches;
    };
    std::vector<Location> own;
    if (op.kind == block_decode) own.emplace_back(plan_.caches.at(static_cast<std::size_t>(op.block)));
    if (caches_in(op.reads) != own || caches_in(op.writes) != own) fail(i, "does not work on the cache of its block alone");
  }

  /// Where a batch has documents, all that goes over tokens knows them.
  void check_documents(std::size_t i, const Operation& op) const {
    const bool knows = std::find(op.reads.begin(), op.reads.end(), Location(plan_.positions)) != op.reads.end();
    const bool needs = op.kind == embedding_forward || op.kind == block_forward || op.kind == recompute ||
                       op.kind == block_backward || op.kind == embedding_backward;
    if (plan_.positions >= 0 && knows != needs) fail(i, needs ? "does not know the documents" : "reads where documents begin");
    const bool has_tables = std::find(op.reads.begin(), op.reads.end(), Location(plan_.tables)) != op.reads.end();
    const bool needs_tables =
        (needs && op.kind != embedding_backward) || op.kind == embedding_decode || op.kind == block_decode;
    if (has_tables != (needs_tables && buffer(plan_.tables).bytes > 0)) fail(i, "does not read the tables, or need not");
  }

  /// A stage finds parameters and gradients through the model's tables; it names them, so that it waits for them.
  void check_named(std::size_t i, const Operation& op, std::size_t unit) const {
    const auto named = [](const std::vector<Location>& places, const Location& one) {
      return std::find(places.begin(), places.end(), one) != places.end();
    };
    if (op.kind != embedding_backward && !named(op.reads, whole_parameters_[unit]))
      fail(i, format("does not say that it reads {}", layout_.units()[unit].name));
    if ((op.kind == head || op.kind == block_backward || op.kind == embedding_backward) && layout_.units()[unit].trainable &&
        !named(op.writes, whole_gradients_[unit]))
      fail(i, format("does not say that it writes the gradient of {}", layout_.units()[unit].name));
  }

  /// Between what is kept in 16 bits and its fp32 numbers: of this rank's part of a unit, or, of gradients before they are
  /// reduced, of all of it.
  void check_kept(std::size_t i, const Operation& op) const {
    const auto u = static_cast<std::size_t>(op.unit);
    const bool is_gradient = op.quantity == Quantity::gradients, widens = op.kind == widen;
    const UnitTypes& types = layout_.units()[u].types;
    const Location& wide = (widens ? op.writes : op.reads).at(0);
    const Location& kept = (widens ? op.reads : op.writes).at(0);
    const bool is_part =
        wide == (is_gradient ? wide_gradients_[u] : wide_master_[u]) && kept == (is_gradient ? gradients_[u] : master_[u]);
    const bool is_whole =
        is_gradient && !widens && wide == whole_gradients_[u] && kept == plan_.at_work(plan_.kept_whole_gradients[u]);
    if (!is_part && !is_whole) fail(i, "does not work where the plan keeps it");
    if (op.type == DType::f32 || op.type != (is_gradient ? types.gradient : types.master)) fail(i, "is of another type");
    if (op.count != (is_part ? layout_.shard_numel(u) : whole_numel(u))) fail(i, "works on a part");
    if (!widens && (op.writes.size() != 2 || op.writes[1] != wide)) fail(i, "does not leave what it keeps");
    if (op.accumulate && (op.reads.size() != 2 || op.reads[1] != kept)) fail(i, "adds to what it does not read");
    check_extent(i, kept, op.count, op.type);
    check_extent(i, wide, op.count, DType::f32);
  }

  /// Units take turns in the memory in which operations find master and gradient in fp32: what is there must be of the
  /// operation's unit, and behind the norm it must have come from what is kept, for this operation.
  void check_turns() const {
    std::map<std::size_t, std::vector<Location>> filled;  // of each unit
    const auto fill = [&](std::size_t u, const Location& place) {
      for (auto& other : filled)
        std::erase_if(other.second, [&](const Location& one) { return overlap(u, place, other.first, one, DType::f32); });
      filled[u].push_back(place);
    };
    const auto takes_turns = [&](std::size_t u, const Location& place) {
      return (place == wide_master_[u] && place != master_[u]) ||
             (!wide_gradients_.empty() && place == wide_gradients_[u] && place != gradients_[u]);
    };
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const Operation& op = list_[i];
      if (op.kind == head || op.kind == block_backward || op.kind == embedding_backward)
        for (const std::size_t u : stage_units_[static_cast<std::size_t>(stage_of(op))])
          if (layout_.units()[u].trainable && takes_turns(u, whole_gradients_[u])) fill(u, whole_gradients_[u]);
      if (op.kind == gradient_norm) filled.clear();
      if (op.unit < 0) continue;
      const auto u = static_cast<std::size_t>(op.unit);
      const auto require = [&](const Location& place) {
        const std::vector<Location>& mine = filled[u];
        if (std::find(mine.begin(), mine.end(), place) == mine.end())
          fail(i, format("finds another unit's numbers in {}", name(place)));
      };
      for (const Location& place : op.reads)
        if (takes_turns(u, place)) require(place);
      for (const Location& place : op.writes) {
        if (!takes_turns(u, place)) continue;
        if (op.kind == widen || op.kind == reduce_scatter)
          fill(u, place);
        else
          require(place);
      }
      if (op.kind == statistics || op.kind == directions) filled[u].clear();
    }
  }

  /// The units that an operation is about.
  std::set<std::size_t> units_of(const Operation& op) const {
    if (op.unit >= 0) return {static_cast<std::size_t>(op.unit)};
    const int stage = stage_of(op);
    return stage < 0 ? std::set<std::size_t>() : stage_units_[static_cast<std::size_t>(stage)];
  }

  struct Loaded {
    bool here = false, changed = false;
    bool lost = false;     // overwritten in its slot before it was unloaded, as only unreduced gradients may be
    int contributed = -1;  // the last micro-batch whose gradient has come into it
  };
  using LoadedBuffers = std::map<BufferId, Loaded>;

  /// Only loads and unloads touch what is kept on the host. An operation finds its unit's data loaded; what it changes is
  /// unloaded before another unit takes the slot, and before the list ends.
  void check_loads() const {
    LoadedBuffers loaded;
    for (std::size_t id = 0; id < plan_.buffers.size(); ++id)
      if (plan_.buffers[id].on_host()) loaded[static_cast<BufferId>(id)] = {};
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const Operation& op = list_[i];
      if (op.kind == load || op.kind == unload)
        check_transfer(i, op, loaded);
      else if (!loaded.empty())
        check_slots(i, op, loaded);
    }
    for (const auto& [id, state] : loaded)
      if (state.changed && !may_be_lost(id))
        fail(list_.size() - 1, format("is the last, and {} is not unloaded", buffer(id).name));
  }

  bool may_be_lost(BufferId id) const { return buffer(id).role == BufferRole::unreduced_gradients; }

  /// The buffer is in its slot from now on, and what lay there is not.
  void take_slot(std::size_t i, BufferId id, LoadedBuffers& loaded) const {
    const PlanBuffer& mine = buffer(id);
    for (const BufferId other : in_slots_.at(mine.slot.buffer)) {
      const PlanBuffer& theirs = buffer(other);
      Loaded& state = loaded.at(other);
      if (other == id || theirs.slot.buffer != mine.slot.buffer || theirs.slot.offset >= mine.slot.offset + mine.bytes ||
          mine.slot.offset >= theirs.slot.offset + theirs.bytes)
        continue;
      if (state.changed && !may_be_lost(other)) fail(i, format("overwrites {}, which is not unloaded", theirs.name));
      if (state.changed) state.lost = true;
      state.here = state.changed = false;
    }
    loaded.at(id).here = true;
  }

  void check_transfer(std::size_t i, const Operation& op, LoadedBuffers& loaded) const {
    if (op.reads.size() != 1 || op.writes.size() != 1) fail(i, "moves not one thing to one place");
    const bool loads = op.kind == load;
    const Location &kept = loads ? op.reads[0] : op.writes[0], slot = loads ? op.writes[0] : op.reads[0];
    const PlanBuffer& home = buffer(kept.buffer);
    if (!home.on_host() || kept != Location(kept.buffer) || slot != home.slot) fail(i, "is not between its two places");
    if (home.unit != op.unit) fail(i, format("moves {}, which is another unit's", home.name));
    if (op.count * size_of(op.type) != home.bytes) fail(i, "moves a part");
    if (buffer(slot.buffer).role != BufferRole::loaded) fail(i, format("has no slot in {}", name(slot)));
    check_extent(i, slot, op.count, op.type);
    Loaded& state = loaded.at(kept.buffer);
    if (!loads && !state.here) fail(i, format("unloads {}, which is not loaded", home.name));
    if (loads && state.changed) fail(i, format("loads {}, which has changed and is not unloaded", home.name));
    if (loads && state.lost) fail(i, format("loads {}, whose last change was not unloaded", home.name));
    if (loads) take_slot(i, kept.buffer, loaded);
    state.changed = false;
  }

  void check_slots(std::size_t i, const Operation& op, LoadedBuffers& loaded) const {
    const std::set<std::size_t> units = units_of(op);
    const auto loaded_at = [&](const Location& place) -> BufferId {
      if (buffer(place.buffer).on_host()) fail(i, format("works on {}, which is on the host", name(place)));
      if (buffer(place.buffer).role != BufferRole::loaded) return -1;
      for (const BufferId id : in_slots_.at(place.buffer))
        if (const PlanBuffer& of = buffer(id); units.contains(static_cast<std::size_t>(of.unit)) &&
                                               of.slot.offset <= place.offset && place.offset < of.slot.offset + of.bytes)
          return id;
      fail(i, format("works on {}, where nothing of its unit is ever loaded", name(place)));
    };
    for (const Location& place : op.reads)
      if (const BufferId id = loaded_at(place); id >= 0 && !loaded.at(id).here)
        fail(i, format("finds no {}: it is not loaded", buffer(id).name));
    const bool contributes = op.kind == head || op.kind == block_backward || op.kind == embedding_backward;
    for (const Location& place : op.writes) {
      const BufferId id = loaded_at(place);
      if (id < 0) continue;
      Loaded& state = loaded.at(id);
      const bool is_first = !contributes || std::exchange(state.contributed, op.micro_batch) != op.micro_batch;
      const bool makes_anew = contributes || op.kind == all_gather || op.kind == reduce_scatter || op.kind == clear ||
                              op.kind == round || op.kind == round_at_random || op.kind == sum_gradients;
      if (makes_anew && is_first && !op.accumulate && place.per_shard == 0)
        take_slot(i, id, loaded), state.lost = false;
      else if (!state.here)
        fail(i, format("changes {}, which is not loaded", buffer(id).name));
      state.changed = true;
    }
  }

  void check_gathers() const {
    std::set<std::size_t> gathered;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const Operation& op = list_[i];
      const auto u = static_cast<std::size_t>(op.unit);
      if (op.kind == all_gather && op.quantity == Quantity::parameters && !plan_.whole_at_rest(u)) {
        for (const std::size_t other : gathered)
          if (overlap(u, op.writes[0], other, whole_parameters_[other], op.type))
            fail(i, format("overwrites {}, which is not released", layout_.units()[other].name));
        gathered.insert(u);
      }
      if (op.kind == release && gathered.erase(u) == 0) fail(i, "releases what is not gathered");
      if (op.kind == embedding_backward) continue;  // reads no parameters
      if (const int stage = stage_of(op); stage >= 0)
        for (const std::size_t needed : stage_units_[static_cast<std::size_t>(stage)])
          if (!plan_.whole_at_rest(needed) && !gathered.contains(needed))
            fail(i, format("needs {}, which is not gathered", layout_.units()[needed].name));
    }
    if (!gathered.empty())
      fail(list_.size() - 1, format("is the last, and {} is still gathered", layout_.units()[*gathered.begin()].name));
  }

  enum class ArenaOf { others, slots, host };
  static ArenaOf arena_of(const PlanBuffer& buffer) {
    return buffer.on_host() ? ArenaOf::host : is_slot(buffer.role) ? ArenaOf::slots : ArenaOf::others;
  }

  /// All micro-batches use memory like the first.
  void check_memory() const {
    std::set<BufferId> live;
    std::size_t bytes = 0, peak = 0;
    const auto overlaps = [&](BufferId a, BufferId b) {
      const PlanBuffer &x = buffer(a), &y = buffer(b);
      return x.bytes > 0 && y.bytes > 0 && arena_of(x) == arena_of(y) && x.offset < y.offset + y.bytes &&
             y.offset < x.offset + x.bytes;
    };
    const auto enter = [&](std::size_t i, BufferId id) {
      const PlanBuffer& one = buffer(id);
      const std::array arenas = {plan_.arena_bytes, plan_.slot_bytes, plan_.host_bytes};
      if (one.offset + one.bytes > arenas[static_cast<std::size_t>(arena_of(one))])
        fail(i, format("uses {}, which lies outside the arena", one.name));
      for (const BufferId other : live)
        if (overlaps(id, other)) fail(i, format("uses {} where {} lies", one.name, buffer(other).name));
      live.insert(id);
      if (!one.on_host()) bytes += one.bytes;
    };
    for (std::size_t id = 0; id < plan_.buffers.size(); ++id)
      if (!plan_.buffers[id].transient) enter(0, static_cast<BufferId>(id));
    peak = bytes;
    for (std::size_t i = 0; i < list_.size() && list_[i].micro_batch == 0; ++i) {
      const Operation& op = list_[i];
      for (const BufferId id : op.acquires) enter(i, id);
      peak = std::max(peak, bytes);
      for (const auto* places : {&op.reads, &op.writes})
        for (const Location& place : *places)
          if (!live.contains(place.buffer)) fail(i, format("uses {}, which is not alive", name(place)));
      for (const BufferId id : op.frees) live.erase(id), bytes -= buffer(id).bytes;
    }
    const bool is_main = &list_ == (plan_.update.empty() ? &plan_.evaluation : &plan_.update);
    if (is_main ? peak != plan_.peak_bytes : peak > plan_.peak_bytes)
      fail(0, format("starts a list whose peak is {} bytes where {} are planned", peak, plan_.peak_bytes));
  }

  std::map<BufferId, std::vector<BufferId>> in_slots_;  // what is loaded into each buffer of slots
};

}  // namespace

void check_plan(const Plan& plan, const Layout& layout, const Placement& placement, const ModelSizes& sizes,
                std::size_t micro_batches) {
  for (const auto* list : {&plan.update, &plan.evaluation, &plan.decoding, &plan.publish})
    if (!list->empty()) ListChecker(plan, layout, placement, sizes, micro_batches, *list).check();
  if (!plan.update.empty()) check_gradient_sums(plan, layout, placement, sizes, micro_batches);
}

}  // namespace fsdp
