// Turns a strategy, a row of the placement table, into operations and buffers.
//
// A micro-batch is a walk over stages: embedding, blocks, head, and back. The walk is written down first, as visits; then each
// visit becomes an operation, with the gathers that it and its successors need before it, and the releases and reductions that
// it makes possible behind it. So prefetch, slots, wrap policies, frozen layers and recomputation are all one rule over the
// visits.
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
        row_(placement),
        options_(options),
        sizes_(sizes),
        blocks_(static_cast<int>(sizes.blocks)),
        gradients_whole_(placement.gradients_between_micro_batches == Place::whole || options.accumulate_unsharded),
        gathers_in_turn_(placement.parameters_forward_to_backward == Place::sharded) {
    expect(options.micro_batches >= 1 && options.parameter_slots >= 1 && options.gradient_slots >= 1 &&
               options.checkpoint_every >= 1,
           "a plan needs slots, a batch and segments");
    expect(sizes.stages.size() == sizes.blocks + 2, "stages are the embedding, the blocks and the head");
  }

  Plan build() {
    find_uses();
    find_bundles();
    add_buffers();
    if (options_.training) {
      for (std::size_t m = 0; m < options_.micro_batches; ++m) {
        micro_batch_ = static_cast<int>(m);
        emit(plan_.update, update_visits());
      }
      emit_updates();
    }
    micro_batch_ = 0;
    emit(plan_.evaluation, evaluation_visits());
    emit_publish();
    for (auto* list : {&plan_.update, &plan_.evaluation, &plan_.publish}) {
      derive_waits(*list);
      derive_lifetimes(*list);
    }
    place_buffers();
    return std::move(plan_);
  }

 private:
  using List = std::vector<Operation>;

  // Stages: 0 the embedding, 1 + b block b, then the head.
  int head_stage() const { return blocks_ + 1; }
  const Unit& unit(int u) const { return layout_.units()[static_cast<std::size_t>(u)]; }
  int units() const { return static_cast<int>(layout_.units().size()); }
  template <class T>
  static auto& at(T& values, int i) {
    return values[static_cast<std::size_t>(i)];
  }

  // On a shard axis of one rank everything is whole where it is: there is nothing to gather, to scatter or to copy.
  bool is_sharded(int u) const { return unit(u).sharded && unit(u).shards > 1; }
  bool sharded_at_rest(int u) const { return is_sharded(u) && row_.parameters_at_rest == Place::sharded; }
  bool trained(int u) const { return options_.training && unit(u).trainable; }
  bool scattered(int u) const { return is_sharded(u) && row_.optimizer_state == Place::sharded; }
  /// There is an fp32 copy beside what is computed with.
  bool rounded(int u) const { return unit(u).types.parameter != DType::f32; }
  /// Whole gradients that live in a slot, from backward to their reduction.
  bool gradient_in_slot(int u) const { return trained(u) && scattered(u) && !gradients_whole_; }

  /// Bundles that are used one after another take slots in turn: those inside of the model some, the embedding and the head,
  /// where they are apart, one. A bundle that both ends use, or that overlaps others, has a slot of its own from its first use
  /// to its last.
  enum class Ring { none, inside, ends };

  /// Units that go through the slots together, because the same stages use them.
  struct Bundle {
    int first, last;         // stages
    std::vector<int> units;  // all of its units
    Ring ring = Ring::none;
    std::size_t turn = 0;   // in the ring
    bool gathered = false;  // while operations are emitted
  };

  void find_uses() {
    std::vector<std::vector<int>> stages_of(static_cast<std::size_t>(units()));
    std::vector<int> unit_of_parameter;
    for (int u = 0; u < units(); ++u)
      for (const std::size_t p : unit(u).parameters) {
        if (p >= unit_of_parameter.size()) unit_of_parameter.resize(p + 1, -1);
        unit_of_parameter[p] = u;
      }
    units_of_stage_.resize(sizes_.stages.size());
    first_stage_.assign(static_cast<std::size_t>(units()), head_stage());
    last_stage_.assign(static_cast<std::size_t>(units()), 0);
    for (int s = 0; s <= head_stage(); ++s) {
      std::set<int> here;
      for (const std::size_t p : at(sizes_.stages, s)) here.insert(unit_of_parameter.at(p));
      for (const int u : here) {
        at(first_stage_, u) = std::min(at(first_stage_, u), s);
        at(last_stage_, u) = std::max(at(last_stage_, u), s);
        if (unit(u).trainable) lowest_trained_ = std::min(lowest_trained_, s);
        some_gradients_stay_ = some_gradients_stay_ || (trained(u) && !gradient_in_slot(u));
      }
      at(units_of_stage_, s).assign(here.begin(), here.end());
    }
  }

  void find_bundles() {
    std::map<std::pair<int, int>, std::vector<int>> by_stages;
    for (int u = 0; u < units(); ++u) by_stages[{at(first_stage_, u), at(last_stage_, u)}].push_back(u);
    for (const auto& [stages, members] : by_stages) bundles_.push_back({stages.first, stages.second, members});
    std::map<Ring, std::size_t> turns;
    const auto is_inside = [&](const Bundle& bundle) { return bundle.first > 0 && bundle.last < head_stage(); };
    for (Bundle& bundle : bundles_) {
      const bool is_end = bundle.last == 0 || bundle.first == head_stage();
      const auto overlaps = [&](const Bundle& other) {
        return &other != &bundle && is_inside(other) && other.first <= bundle.last && bundle.first <= other.last;
      };
      if (!is_end && (!is_inside(bundle) || std::any_of(bundles_.begin(), bundles_.end(), overlaps))) continue;
      bundle.ring = is_end ? Ring::ends : Ring::inside;
      bundle.turn = turns[bundle.ring]++;
    }
  }

  BufferId add(std::string name, BufferRole role, std::size_t bytes, bool transient = false) {
    plan_.buffers.push_back({std::move(name), role, round_up(bytes, arena_alignment), transient});
    return static_cast<BufferId>(plan_.buffers.size()) - 1;
  }
  std::size_t shard_bytes(int u, DType type = DType::f32) const { return shard_numel(u) * size_of(type); }
  std::size_t shard_numel(int u) const { return layout_.shard_numel(static_cast<std::size_t>(u)); }
  std::size_t whole_bytes(int u, DType type = DType::f32) const { return unit(u).padded_numel * size_of(type); }

  static std::size_t slots_of(Ring ring, std::size_t inside) { return ring == Ring::ends ? 1 : inside; }

  /// Room for those units of each bundle that `wanted` picks: the slots of its ring, if bundles take turns, of which that
  /// inside of the model has `inside`; else one of its own. It fills locations[unit].
  template <class Wanted>
  void add_slots(const char* letter, BufferRole role, DType type, std::size_t inside, bool in_turn, const Wanted& wanted,
                 std::vector<Location>& locations) {
    std::map<Ring, std::size_t> turns, largest;
    std::vector<std::size_t> sizes;
    for (const Bundle& bundle : bundles_) {
      std::size_t bytes = 0;
      for (const int u : bundle.units)
        if (wanted(u)) at(locations, u).offset = std::exchange(bytes, bytes + whole_bytes(u, type));
      sizes.push_back(bytes);
      if (!in_turn || bundle.ring == Ring::none) continue;
      turns[bundle.ring] = std::max(turns[bundle.ring], bundle.turn + 1);
      largest[bundle.ring] = std::max(largest[bundle.ring], bytes);
    }
    std::map<Ring, std::vector<BufferId>> slots;
    for (const auto& [ring, bytes] : largest)
      for (std::size_t i = 0; i < std::min(slots_of(ring, inside), turns[ring]) && bytes > 0; ++i)
        slots[ring].push_back(add(ring == Ring::ends ? format("{} ends", letter) : format("{}{}", letter, i), role, bytes));
    for (std::size_t i = 0; i < bundles_.size(); ++i) {
      const Bundle& bundle = bundles_[i];
      if (sizes[i] == 0) continue;
      const std::vector<BufferId>& ring = slots[bundle.ring];
      const BufferId slot = in_turn && bundle.ring != Ring::none
                                ? ring[bundle.turn % ring.size()]
                                : add(format("{} {}", letter, unit(bundle.units.front()).name), role, sizes[i]);
      for (const int u : bundle.units)
        if (wanted(u)) at(locations, u).buffer = slot;
    }
  }

  void add_buffers() {
    const auto n = static_cast<std::size_t>(units());
    plan_.whole_parameters.resize(n);
    for (int u = 0; u < units(); ++u) {
      const DType type = unit(u).types.parameter;
      const bool part = sharded_at_rest(u);
      if (rounded(u))
        plan_.master.push_back(
            add("fp32 " + unit(u).name, BufferRole::parameters, scattered(u) ? shard_bytes(u) : whole_bytes(u)));
      const BufferId at_rest = add((part ? "shard " : "") + unit(u).name, BufferRole::parameters,
                                   part ? shard_bytes(u, type) : whole_bytes(u, type));
      plan_.parameters.emplace_back(at_rest, 0, part || unit(u).shards == 1 ? 0 : shard_bytes(u, type));
      if (!rounded(u)) plan_.master.push_back(plan_.parameters.back());
      at(plan_.whole_parameters, u) = at_rest;
    }
    add_slots(
        "P", BufferRole::gathered_parameters, layout_.units().front().types.parameter, options_.parameter_slots,
        gathers_in_turn_, [&](int u) { return sharded_at_rest(u); }, plan_.whole_parameters);
    if (options_.training) {
      plan_.whole_gradients.resize(n);
      for (int u = 0; u < units(); ++u) {
        plan_.gradients.push_back(trained(u) ? add("gradient " + unit(u).name, BufferRole::gradients, shard_bytes(u)) : -1);
        at(plan_.whole_gradients, u) = plan_.gradients.back();
        if (trained(u) && scattered(u) && gradients_whole_)
          at(plan_.whole_gradients, u) = add("whole gradient " + unit(u).name, BufferRole::unreduced_gradients, whole_bytes(u));
      }
      add_slots(
          "Q", BufferRole::unreduced_gradients, DType::f32, options_.gradient_slots, true,
          [&](int u) { return gradient_in_slot(u); }, plan_.whole_gradients);
      for (int u = 0; u < units(); ++u) {
        auto& states = plan_.optimizer_state.emplace_back();
        if (!trained(u)) continue;
        for (const StateInfo& state : unit(u).rule->states) {
          const DType type = state.extent == Extent::element ? options_.optimizer_state_type : DType::f32;
          states.push_back(add(format("{} {}", state.name, unit(u).name), BufferRole::optimizer_state,
                               layout_.state_numel(static_cast<std::size_t>(u), state.extent) * size_of(type)));
        }
      }
    }
    add_directions();
    plan_.inputs = add("inputs", BufferRole::batch, sizes_.batch);
    plan_.targets = add("targets", BufferRole::batch, sizes_.batch);
    plan_.tables = add("tables", BufferRole::batch, sizes_.tables);
    plan_.scratch = add("scratch", BufferRole::scratch, sizes_.scratch);
    plan_.sums = add("sums", BufferRole::scratch, sizeof(UpdateSums));
    for (int round = 0; options_.training && layout_.statistics_words(round) > 0; ++round)
      plan_.statistics.push_back(
          add(format("statistics{}", round), BufferRole::scratch, layout_.statistics_words(round) * sizeof(std::int64_t)));
    const auto activation = [&](std::string name, std::size_t bytes) {
      return add(std::move(name), BufferRole::activations, bytes, true);
    };
    for (int b = 0; b <= (options_.training ? blocks_ : 1); ++b) x_.push_back(activation(format("x{}", b), sizes_.activation));
    const bool keep = options_.training && !recomputes();
    const std::size_t kept = refills() ? sizes_.kept : sizes_.saved;
    if (keep)
      for (int b = 0; b < blocks_; ++b)  // of blocks without backward nothing is kept
        saved_.push_back(b < first_backward_block() && b > 0 ? saved_.front() : activation(format("saved{}", b), kept));
    else
      for (int i = 0; i < (options_.training ? segment() : 1); ++i) saved_.push_back(activation(format("saved{}", i), kept));
    if (refills()) plan_.cheap = activation("cheap", sizes_.saved - kept);
    if (options_.training) {
      dx_ = activation("dx", sizes_.activation);
      if (recomputes())
        for (int i = 1; i < segment(); ++i) recomputed_x_.push_back(activation(format("x+{}", i), sizes_.activation));
    }
  }

  bool works_on_matrices(int u) const { return trained(u) && unit(u).rule->whole.work; }

  /// Directions take turns in buffers of their own; whole matrices lie where the unit's gradient was before its reduction.
  void add_directions() {
    directions_.assign(static_cast<std::size_t>(units()), {});
    whole_directions_ = directions_;
    std::size_t largest = 0, scratch = 0, turn = 0;
    for (int u = 0; u < units(); ++u) {
      if (!works_on_matrices(u)) continue;
      largest = std::max(largest, shard_bytes(u));
      ++turn;
      for (const std::size_t p : unit(u).parameters) {
        const Shape& shape = layout_.shape(p);
        scratch = std::max(scratch, unit(u).rule->whole.scratch(numel(shape) / shape.back(), shape.back()));
      }
    }
    if (largest == 0) return;
    std::vector<BufferId> buffers;
    for (std::size_t i = 0; i < std::min(turn, plan_.directions_at_once); ++i)
      buffers.push_back(add(format("directions{}", i), BufferRole::scratch, largest));
    matrix_scratch_ = add("matrices", BufferRole::scratch, scratch * size_of(DType::f32));
    turn = 0;
    for (int u = 0; u < units(); ++u) {
      if (!works_on_matrices(u)) continue;
      at(directions_, u) = buffers[turn++ % buffers.size()];
      at(whole_directions_, u) = scattered(u) ? at(plan_.whole_gradients, u) : at(directions_, u);
    }
  }

  bool recomputes() const { return options_.checkpoint_activations && options_.checkpoint_policy == CheckpointPolicy::block; }
  bool refills() const {
    return options_.training && options_.checkpoint_activations && options_.checkpoint_policy == CheckpointPolicy::selective;
  }
  int segment() const { return std::min(static_cast<int>(options_.checkpoint_every), blocks_); }
  /// Backward goes down to the lowest stage that is trained.
  int first_backward_block() const { return std::max(lowest_trained_, 1) - 1; }
  bool recomputed(int block) const { return recomputes() && block / segment() < (blocks_ - 1) / segment(); }
  BufferId x(int block) const { return at(x_, block); }
  BufferId saved(int block) const { return recomputes() ? at(saved_, block % segment()) : at(saved_, block); }
  /// The input of a block in backward: kept, or made again inside its segment.
  BufferId x_in_backward(int block) const {
    return recomputed(block) && block % segment() > 0 ? at(recomputed_x_, block % segment() - 1) : x(block);
  }

  /// An operation of the walk, before gathers and reductions are put around it.
  struct Visit {
    Operation op;
    int stage;
    bool backward = false;  // for the choice of prefetch
    bool reads_parameters = true;
    bool writes_gradients = false;
  };

  /// Whole gradients that stay add up in backward; those in slots add up in their reduction, and are written anew each time.
  /// Where one operation writes both kinds, it adds to all, and the slots are cleared first.
  bool adds() const { return micro_batch_ > 0 && some_gradients_stay_; }
  bool clears(int u) const { return adds() && gradient_in_slot(u); }

  /// What a block's stage writes beside its result.
  std::vector<Location> with_scratch(std::vector<Location> writes) const {
    writes.emplace_back(plan_.scratch);
    if (plan_.cheap >= 0) writes.emplace_back(plan_.cheap);
    return writes;
  }

  static Operation computation(OperationKind kind, int block, std::vector<Location> reads, std::vector<Location> writes) {
    return {.kind = kind, .stream = StreamId::compute, .block = block, .reads = std::move(reads), .writes = std::move(writes)};
  }

  std::vector<Visit> update_visits() const {
    std::vector<Visit> visits;
    visits.push_back({.op = computation(embedding_forward, -1, {plan_.inputs}, {x(0)}), .stage = 0});
    for (int b = 0; b < blocks_; ++b)
      visits.push_back({.op = computation(block_forward, b, {x(b)}, with_scratch({x(b + 1), saved(b)})), .stage = b + 1});
    visits.push_back({.op = computation(head, -1, {x(blocks_), plan_.targets}, {dx_, plan_.scratch, plan_.sums}),
                      .stage = head_stage(),
                      .backward = true,
                      .writes_gradients = true});
    for (int b = blocks_ - 1; b >= first_backward_block() && lowest_trained_ < head_stage(); --b) {
      if (recomputed(b) && (b + 1) % segment() == 0) add_recomputation(visits, b + 1 - segment(), b);
      if (refills() && b + 1 < blocks_)  // of the last block it is all there
        visits.push_back(
            {.op = computation(refill, b, {x(b), saved(b)}, {plan_.cheap, plan_.scratch}), .stage = b + 1, .backward = true});
      visits.push_back({.op = computation(block_backward, b, {x_in_backward(b), saved(b), dx_}, with_scratch({dx_, saved(b)})),
                        .stage = b + 1,
                        .backward = true,
                        .writes_gradients = true});
    }
    if (lowest_trained_ == 0)
      visits.push_back({.op = computation(embedding_backward, -1, {plan_.inputs, dx_}, {plan_.scratch}),
                        .stage = 0,
                        .backward = true,
                        .reads_parameters = false,
                        .writes_gradients = true});
    return visits;
  }

  /// The forward passes of a segment once more, whose last output nobody needs.
  void add_recomputation(std::vector<Visit>& visits, int first, int last) const {
    for (int b = first; b <= last; ++b) {
      Operation op = computation(recompute, b, {x_in_backward(b)}, {saved(b), plan_.scratch});
      if (b < last) op.writes.emplace_back(x_in_backward(b + 1));
      visits.push_back({.op = std::move(op), .stage = b + 1, .backward = true});
    }
  }

  std::vector<Visit> evaluation_visits() const {
    std::vector<Visit> visits;
    visits.push_back({.op = computation(embedding_forward, -1, {plan_.inputs}, {x(0)}), .stage = 0});
    for (int b = 0; b < blocks_; ++b)
      visits.push_back(
          {.op = computation(block_forward, b, {x(b % 2)}, with_scratch({x((b + 1) % 2), saved_.front()})), .stage = b + 1});
    visits.push_back({.op = computation(head_loss, -1, {x(blocks_ % 2), plan_.targets}, {plan_.scratch, plan_.sums}),
                      .stage = head_stage()});
    return visits;
  }

  Operation& emit(List& list, Operation op) {
    op.micro_batch = micro_batch_;
    return list.emplace_back(std::move(op));
  }

  void emit(List& list, const std::vector<Visit>& visits) {
    emit(list, {.kind = read_batch, .stream = StreamId::compute, .reads = {}, .writes = {plan_.inputs, plan_.targets}});
    for (std::size_t v = 0; v < visits.size(); ++v) {
      const Visit& visit = visits[v];
      if (visit.reads_parameters)
        for (Bundle& bundle : bundles_)
          if (needs(visit, bundle)) gather(list, bundle);
      const bool ahead = visit.backward ? options_.backward_prefetch == BackwardPrefetch::pre : options_.forward_prefetch;
      if (ahead) prefetch(list, visits, v);
      Operation op = visit.op;
      for (const int u : at(units_of_stage_, visit.stage)) {
        if (visit.writes_gradients && clears(u) && at(last_stage_, u) == visit.stage)
          emit(list, {.kind = clear,
                      .stream = StreamId::compute,
                      .unit = u,
                      .count = unit(u).padded_numel,
                      .reads = {},
                      .writes = {at(plan_.whole_gradients, u)}});
        if (visit.reads_parameters) op.reads.push_back(at(plan_.whole_parameters, u));
        if (visit.writes_gradients && trained(u)) op.writes.push_back(at(plan_.whole_gradients, u));
      }
      op.accumulate = visit.writes_gradients && adds();
      emit(list, std::move(op));
      for (Bundle& bundle : bundles_)
        if (needs(visit, bundle) && !stays(bundle, visits, v)) release_bundle(list, bundle);
      if (visit.backward && options_.backward_prefetch == BackwardPrefetch::post) prefetch(list, visits, v);
      if (visit.writes_gradients)
        for (const int u : at(units_of_stage_, visit.stage))
          if (trained(u) && at(first_stage_, u) == visit.stage) reduce(list, u);
    }
  }

  bool needs(const Visit& visit, const Bundle& bundle) const {
    const auto& here = at(units_of_stage_, visit.stage);
    return visit.reads_parameters && std::any_of(bundle.units.begin(), bundle.units.end(), [&](int u) {
             return sharded_at_rest(u) && std::find(here.begin(), here.end(), u) != here.end();
           });
  }

  /// Whether a bundle is kept after visit v: until its last use, or, where slots are taken in turn, if it is the next of its
  /// ring.
  bool stays(const Bundle& bundle, const std::vector<Visit>& visits, std::size_t v) const {
    for (std::size_t next = v + 1; next < visits.size(); ++next) {
      if (needs(visits[next], bundle)) return true;
      if (!has_own_slot(bundle))
        for (const Bundle& other : bundles_)
          if (other.ring == bundle.ring && needs(visits[next], other)) return false;
    }
    return false;
  }

  bool has_own_slot(const Bundle& bundle) const { return bundle.ring == Ring::none || !gathers_in_turn_; }

  bool slot_is_free(const Bundle& bundle) const {
    if (has_own_slot(bundle)) return true;
    const std::size_t slots = slots_of(bundle.ring, options_.parameter_slots);
    return std::none_of(bundles_.begin(), bundles_.end(), [&](const Bundle& other) {
      return other.gathered && other.ring == bundle.ring && other.turn % slots == bundle.turn % slots;
    });
  }

  void gather(List& list, Bundle& bundle) {
    if (bundle.gathered) return;
    expect(slot_is_free(bundle), "a unit is gathered into a slot that another one holds");
    bundle.gathered = true;
    for (const int u : bundle.units)
      if (sharded_at_rest(u)) emit_gather(list, u);
  }

  void emit_gather(List& list, int u) {
    emit(list, {.kind = all_gather,
                .stream = StreamId::gather,
                .unit = u,
                .count = shard_numel(u),
                .type = unit(u).types.parameter,
                .reads = {at(plan_.parameters, u)},
                .writes = {at(plan_.whole_parameters, u)}});
  }

  /// Gathers what the visits after v need next, as far as slots allow.
  void prefetch(List& list, const std::vector<Visit>& visits, std::size_t v) {
    std::vector<const Bundle*> ahead;
    for (std::size_t next = v + 1; next < visits.size() && visits[next].backward == visits[v].backward; ++next)
      for (Bundle& bundle : bundles_) {
        if (!needs(visits[next], bundle) || needs(visits[v], bundle)) continue;
        if (std::find(ahead.begin(), ahead.end(), &bundle) != ahead.end()) continue;
        if (ahead.size() + 1 >= options_.parameter_slots || !(bundle.gathered || slot_is_free(bundle))) return;
        gather(list, bundle);
        ahead.push_back(&bundle);
      }
  }

  void release_bundle(List& list, Bundle& bundle) {
    bundle.gathered = false;
    for (const int u : bundle.units)
      if (sharded_at_rest(u))
        emit(list,
             {.kind = release, .stream = StreamId::compute, .unit = u, .reads = {at(plan_.whole_parameters, u)}, .writes = {}});
  }

  /// The gradient of a unit is whole on this rank for this micro-batch.
  void reduce(List& list, int u) {
    const Location mine = at(plan_.gradients, u);
    const bool last = micro_batch_ + 1 == static_cast<int>(options_.micro_batches);
    if (scattered(u) && (last || !gradients_whole_))
      emit(list, {.kind = reduce_scatter,
                  .stream = StreamId::reduce,
                  .unit = u,
                  .accumulate = micro_batch_ > 0 && !gradients_whole_,
                  .quantity = Quantity::gradients,
                  .count = shard_numel(u),
                  .travel = unit(u).types.reduce,
                  .reads = {at(plan_.whole_gradients, u)},
                  .writes = {mine}});
    if (last && is_replicated(u))
      emit(list, {.kind = all_reduce,
                  .stream = StreamId::reduce,
                  .unit = u,
                  .quantity = Quantity::gradients,
                  .group = replicas(u),
                  .count = shard_numel(u),
                  .travel = scattered(u) ? DType::f32 : unit(u).types.reduce,  // sums stay as they are
                  .reads = {mine},
                  .writes = {mine}});
    if (last)
      emit(list, {.kind = add_squares,
                  .stream = StreamId::reduce,
                  .unit = u,
                  .count = shard_numel(u),
                  .reads = {mine},
                  .writes = {plan_.sums}});
  }

  /// Other ranks have the same part of the unit's gradient, each from its own data; which ranks those are.
  bool is_replicated(int u) const { return row_.axis != ShardAxis::world || !scattered(u); }
  GroupAxis replicas(int u) const { return unit(u).sharded ? GroupAxis::replicate : GroupAxis::world; }

  /// Norm and optimizer; each unit's parameters are published while the next one's are updated.
  void emit_updates() {
    List& list = plan_.update;
    emit_sum(Quantity::squares, GroupAxis::shard, {plan_.sums, offsetof(UpdateSums, squares)}, kernels::ExactSum::words,
             DType::i64);
    emit_sum(Quantity::loss, GroupAxis::world, {plan_.sums, offsetof(UpdateSums, loss)}, 1, DType::f64);
    emit(list, {.kind = gradient_norm, .stream = StreamId::reduce, .reads = {plan_.sums}, .writes = {plan_.sums}});
    if (options_.clip_values)
      for (int u = 0; u < units(); ++u)
        if (trained(u))
          emit(list, {.kind = clip_values,
                      .stream = StreamId::compute,
                      .unit = u,
                      .count = shard_numel(u),
                      .reads = {plan_.sums, at(plan_.gradients, u)},
                      .writes = {at(plan_.gradients, u)}});
    for (std::size_t round = 0; round < plan_.statistics.size(); ++round) emit_statistics(static_cast<int>(round));
    std::vector<int> together;  // units that work on matrices at the same time
    for (int u = 0; u < units(); ++u) {
      if (!trained(u)) continue;
      if (!works_on_matrices(u)) {
        emit_optimizer(u);
        continue;
      }
      if (together.size() == plan_.directions_at_once || shares_memory(u, together)) emit_matrices(std::exchange(together, {}));
      together.push_back(u);
    }
    emit_matrices(together);
  }

  /// A sum over the ranks that no unit's gradient is.
  void emit_sum(Quantity quantity, GroupAxis group, Location where, std::size_t count, DType type, int round = 0) {
    emit(plan_.update, {.kind = all_reduce,
                        .stream = StreamId::reduce,
                        .round = round,
                        .quantity = quantity,
                        .group = group,
                        .count = count,
                        .type = type,
                        .reads = {where},
                        .writes = {where}});
  }

  /// Where this rank counts a round of a unit's sums over whole tensors.
  Location words(int u, int round) const {
    const Range range = layout_.statistics(static_cast<std::size_t>(u), round);
    return {at(plan_.statistics, round), range.begin * sizeof(std::int64_t)};
  }

  void emit_optimizer(int u) {
    std::vector<Location> read = {plan_.sums, works_on_matrices(u) ? at(directions_, u) : at(plan_.gradients, u)};
    for (int round = 0; round < rounds(u); ++round) read.push_back(words(u, round));
    std::vector<Location> written = {at(plan_.master, u)};
    if (rounded(u)) written.push_back(at(plan_.parameters, u));
    emit(plan_.update, {.kind = optimizer,
                        .stream = StreamId::compute,
                        .unit = u,
                        .reads = std::move(read),
                        .writes = with_states(u, std::move(written))});
    publish(plan_.update, u);
  }

  bool shares_memory(int u, const std::vector<int>& others) const {
    return std::any_of(others.begin(), others.end(), [&](int other) {
      return at(whole_directions_, u).buffer == at(whole_directions_, other).buffer ||
             at(directions_, u).buffer == at(directions_, other).buffer;
    });
  }

  /// The owners of matrices are dealt out over all ranks, replicas too: zeros elsewhere, and the sum that gradients take.
  void emit_matrices(const std::vector<int>& together) {
    List& list = plan_.update;
    const auto part = [&](int u) { return at(directions_, u); };
    const auto whole = [&](int u) { return at(whole_directions_, u); };
    const auto move = [&](OperationKind kind, StreamId stream, GroupAxis group, int u, Location from, Location to) {
      emit(list, {.kind = kind,
                  .stream = stream,
                  .unit = u,
                  .quantity = Quantity::directions,
                  .group = group,
                  .count = shard_numel(u),
                  .reads = {from},
                  .writes = {to}});
    };
    for (const int u : together) {
      emit(list, {.kind = directions,
                  .stream = StreamId::compute,
                  .unit = u,
                  .reads = {plan_.sums, at(plan_.gradients, u)},
                  .writes = with_states(u, {part(u)})});
      if (scattered(u)) move(all_gather, StreamId::gather, GroupAxis::shard, u, part(u), whole(u));
    }
    for (const int u : together) {
      emit(list, {.kind = whole_matrices,
                  .stream = StreamId::compute,
                  .unit = u,
                  .reads = {plan_.sums, whole(u)},
                  .writes = {whole(u), matrix_scratch_}});
      if (scattered(u)) move(reduce_scatter, StreamId::reduce, GroupAxis::shard, u, whole(u), part(u));
      if (is_replicated(u)) move(all_reduce, StreamId::reduce, replicas(u), u, part(u), part(u));
    }
    for (const int u : together) emit_optimizer(u);
  }

  int rounds(int u) const { return unit(u).rule->statistics.rounds; }

  std::vector<Location> with_states(int u, std::vector<Location> places) const {
    const std::vector<BufferId>& states = at(plan_.optimizer_state, u);
    places.insert(places.end(), states.begin(), states.end());
    return places;
  }

  /// Sums over whole tensors: each unit's on this rank, and all of them over the ranks at once.
  void emit_statistics(int round) {
    for (int u = 0; u < units(); ++u) {
      if (!trained(u) || round >= rounds(u)) continue;
      std::vector<Location> read = {plan_.sums, at(plan_.gradients, u), at(plan_.master, u)};
      for (int before = 0; before < round; ++before) read.push_back(words(u, before));
      emit(plan_.update, {.kind = statistics,
                          .stream = StreamId::compute,
                          .unit = u,
                          .round = round,
                          .count = layout_.statistics(static_cast<std::size_t>(u), round).size(),
                          .reads = std::move(read),
                          .writes = with_states(u, {words(u, round)})});
    }
    emit_sum(Quantity::statistics, GroupAxis::shard, at(plan_.statistics, round), layout_.statistics_words(round), DType::i64,
             round);
  }

  void emit_publish() {
    for (int u = 0; u < units(); ++u) {
      if (rounded(u))
        emit(plan_.publish, {.kind = round,
                             .stream = StreamId::compute,
                             .unit = u,
                             .count = shard_numel(u),
                             .type = unit(u).types.parameter,
                             .reads = {at(plan_.master, u)},
                             .writes = {at(plan_.parameters, u)}});
      publish(plan_.publish, u);
    }
  }

  /// Parameters that are whole at rest, of which each rank has changed its part.
  void publish(List& list, int u) {
    if (scattered(u) && !sharded_at_rest(u)) emit_gather(list, u);
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
  void derive_lifetimes(std::vector<Operation>& list) const {
    std::map<std::pair<int, BufferId>, std::pair<std::size_t, std::size_t>> uses;
    for (std::size_t i = 0; i < list.size(); ++i)
      for (const auto* places : {&list[i].reads, &list[i].writes})
        for (const Location& place : *places)
          if (at(plan_.buffers, place.buffer).transient)
            uses.try_emplace({list[i].micro_batch, place.buffer}, i, i).first->second.second = i;
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
  const Placement& row_;
  const PlanOptions& options_;
  const ModelSizes& sizes_;
  const int blocks_;
  const bool gradients_whole_;  // between micro-batches
  bool some_gradients_stay_ = false;
  const bool gathers_in_turn_;  // else gathered units stay from forward to backward
  Plan plan_;
  int micro_batch_ = 0;
  int lowest_trained_ = 1 << 30;  // stage
  std::vector<std::vector<int>> units_of_stage_;
  std::vector<int> first_stage_, last_stage_;  // of each unit
  std::vector<Bundle> bundles_;                // in order of their first stage
  std::vector<BufferId> x_, saved_, recomputed_x_;
  BufferId dx_ = -1, matrix_scratch_ = -1;
  // Per unit, where its rule needs whole matrices: this rank's part of their directions, and the whole of them, which may be
  // the same.
  std::vector<Location> directions_, whole_directions_;
};

}  // namespace

Plan build_plan(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options) {
  return Builder(layout, placement, sizes, options).build();
}

}  // namespace fsdp
