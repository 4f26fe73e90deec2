// The plan builder: turns a strategy (a row of the placement table) into operations and buffers.
//
// A micro-batch is a walk over the stages: embedding, blocks, head, and back. The walk is first written down as a list of
// visits. Then each visit becomes an operation, preceded by the gathers that it and its successors need, and followed by the
// releases and reductions that it makes possible. The same code for visits thus implements prefetch, slots, wrap policies,
// frozen layers and recomputation.
#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/format.hpp"
#include "plan/build/derive.hpp"
#include "plan/build/unit_placement.hpp"
#include "plan/build/update_builder.hpp"
#include "plan/kind.hpp"
#include "plan/plan.hpp"

namespace fsdp {

namespace {

using enum OperandName;

/// The largest number of partial sums of a unit's gradient that an invariant plan stores at the same time. It adds partial sums
/// as a binary tree: two adjacent sums are added once both cover the same number of micro-batches. So after micro-batch k (from
/// 0) there is one partial sum for each 1 in the binary form of k + 1. If `joins_at_once` is true, the gradient of an odd
/// micro-batch is added to the previous sum during the gradient's reduction. Otherwise the gradient is another partial sum
/// until it is summed over replicas.
std::size_t sums_at_once(std::size_t micro_batches, bool joins_at_once) {
  // The largest number of ones in the binary form of a number from 0 to `last`.
  const auto most_ones = [](std::size_t last) {
    const auto digits = static_cast<std::size_t>(std::bit_width(last));
    return std::has_single_bit(last + 1) || last == 0 ? digits : digits - 1;
  };
  const std::size_t last = micro_batches - 1;
  return 1 + (joins_at_once ? most_ones(last / 2) : most_ones(last));
}

class Builder {
 public:
  Builder(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options,
          const ModelSizes& evaluated)
      : units_(layout, placement, options),
        options_(options),
        sizes_(sizes),
        evaluated_(evaluated),
        blocks_(static_cast<int>(sizes.blocks())),
        updates_(units_, plan_, options.clip_values) {
    expect(options.micro_batches >= 1 && options.parameter_slots >= 1 && options.gradient_slots >= 1 &&
               options.checkpoint_every >= 1,
           "micro-batches, slots and blocks per checkpointed segment are at least 1");
    expect(options.recomputed_blocks == 0 || !options.checkpoint_activations,
           "either the first blocks are recomputed, or all segments but the last one");
    expect(!units_.sums_in_a_tree() || !options.accumulate_unsharded,
           "an invariant plan does not add up micro-batches before it reduces them");
    expect(sizes.stages.size() == sizes.blocks() + 2 && sizes.activations.size() == sizes.blocks() + 1 &&
               sizes.kept.size() == sizes.blocks(),
           "the stages are the embedding, the blocks and the head");
  }

  Plan build() {
    plan_.blocks_in_pieces = blocks_in_pieces();
    find_uses();
    find_bundles();
    add_buffers();
    if (options_.training) {
      for (std::size_t m = 0; m < options_.micro_batches; ++m) {
        micro_batch_ = static_cast<int>(m);
        emit(plan_.update, update_visits());
      }
      plan_.sections.forward_backward = plan_.update.size();
      updates_.append_norm(micro_batch_);
      plan_.sections.gradient_norm = plan_.update.size();
      updates_.append_optimizer(micro_batch_);
    }
    micro_batch_ = 0;
    emit(plan_.evaluation, evaluation_visits());
    if (options_.input_gradients) emit(plan_.input_gradients, visits_for_inputs());
    if (decodes()) emit(plan_.decoding, decoding_visits(), kinds::read_rows);
    updates_.append_publish();
    add_loads(plan_);
    for (auto* list : {&plan_.update, &plan_.evaluation, &plan_.input_gradients, &plan_.decoding, &plan_.publish}) {
      derive_waits(*list, plan_.buffers.size());
      derive_lifetimes(*list, plan_.buffers);
    }
    place_buffers(plan_);
    return std::move(plan_);
  }

 private:
  using List = std::vector<Operation>;

  // Stage 0 is the embedding, stage 1 + b is block b, and the last stage is the head.
  int head_stage() const { return blocks_ + 1; }

  /// The slots that a bundle of units shares with other bundles. `inside` has several slots, for bundles of blocks. `ends` has
  /// one slot, for the embedding and the head if they are separate. `none` means that the bundle has its own slot from its
  /// first use to its last: both ends of the model use the bundle, or it overlaps others.
  enum class SlotPool { none, inside, ends };

  /// Units that are gathered and released together, because the same stages use them.
  struct Bundle {
    int first, last;         // stages
    std::vector<int> units;  // all units of the bundle
    SlotPool pool = SlotPool::none;
    std::size_t turn = 0;   // position in the pool's order of use
    bool gathered = false;  // after the operations that the list has so far
  };

  void find_uses() {
    const std::vector<std::size_t> unit_of_parameter = units_.layout().units_of_parameters();
    units_of_stage_.resize(sizes_.stages.size());
    first_stage_.assign(static_cast<std::size_t>(units_.count()), head_stage());
    last_stage_.assign(static_cast<std::size_t>(units_.count()), 0);
    for (int s = 0; s <= head_stage(); ++s) {
      std::set<int> here;
      for (const std::size_t p : at(sizes_.stages, s)) here.insert(static_cast<int>(unit_of_parameter.at(p)));
      for (const int u : here) {
        at(first_stage_, u) = std::min(at(first_stage_, u), s);
        at(last_stage_, u) = std::max(at(last_stage_, u), s);
        if (units_.unit(u).trainable) lowest_trained_ = std::min(lowest_trained_, s);
        some_gradients_stay_ = some_gradients_stay_ || (units_.trained(u) && !units_.gradient_in_slot(u));
      }
      at(units_of_stage_, s).assign(here.begin(), here.end());
    }
  }

  void find_bundles() {
    std::map<std::pair<int, int>, std::vector<int>> by_stages;
    for (int u = 0; u < units_.count(); ++u) by_stages[{at(first_stage_, u), at(last_stage_, u)}].push_back(u);
    for (const auto& [stages, members] : by_stages) bundles_.push_back({stages.first, stages.second, members});
    std::map<SlotPool, std::size_t> turns;
    const auto is_inside = [&](const Bundle& bundle) { return bundle.first > 0 && bundle.last < head_stage(); };
    for (Bundle& bundle : bundles_) {
      const bool is_end = bundle.last == 0 || bundle.first == head_stage();
      const auto overlaps = [&](const Bundle& other) {
        return &other != &bundle && is_inside(other) && other.first <= bundle.last && bundle.first <= other.last;
      };
      if (!is_end && (!is_inside(bundle) || std::any_of(bundles_.begin(), bundles_.end(), overlaps))) continue;
      bundle.pool = is_end ? SlotPool::ends : SlotPool::inside;
      bundle.turn = turns[bundle.pool]++;
    }
    std::vector<std::size_t> bundle_of(static_cast<std::size_t>(units_.count()));
    for (std::size_t i = 0; i < bundles_.size(); ++i)
      for (const int u : bundles_[i].units) at(bundle_of, u) = i;
    for (const std::vector<int>& units : units_of_stage_) {
      std::set<std::size_t> here;
      for (const int u : units)
        if (units_.sharded_at_rest(u)) here.insert(at(bundle_of, u));
      gathered_at_stage_.emplace_back(here.begin(), here.end());
    }
  }

  static std::size_t slots_of(SlotPool pool, std::size_t inside) { return pool == SlotPool::ends ? 1 : inside; }

  /// Reserves memory for each unit with bytes_of(unit) > 0, and sets locations[unit]. If `in_turn` is true, the bundles of a
  /// pool reuse the pool's slots cyclically; `inside` is the number of slots of SlotPool::inside. Every other bundle has its
  /// own memory.
  template <class BytesOf>
  void add_slots(const std::string& name, BufferRole role, std::size_t inside, bool in_turn, const BytesOf& bytes_of,
                 std::vector<Location>& locations) {
    std::map<SlotPool, std::size_t> turns, largest;
    std::vector<std::size_t> sizes;
    for (const Bundle& bundle : bundles_) {
      std::size_t bytes = 0;
      for (const int u : bundle.units)
        if (const std::size_t mine = bytes_of(u)) at(locations, u).offset = std::exchange(bytes, bytes + mine);
      sizes.push_back(bytes);
      if (!in_turn || bundle.pool == SlotPool::none) continue;
      turns[bundle.pool] = std::max(turns[bundle.pool], bundle.turn + 1);
      largest[bundle.pool] = std::max(largest[bundle.pool], bytes);
    }
    std::map<SlotPool, std::vector<BufferId>> slots;
    for (const auto& [pool, bytes] : largest)
      for (std::size_t i = 0; i < std::min(slots_of(pool, inside), turns[pool]) && bytes > 0; ++i)
        slots[pool].push_back(
            add_buffer(plan_, pool == SlotPool::ends ? name + " ends" : format("{}{}", name, i), role, bytes));
    for (std::size_t i = 0; i < bundles_.size(); ++i) {
      const Bundle& bundle = bundles_[i];
      if (sizes[i] == 0) continue;
      const std::vector<BufferId>& pool = slots[bundle.pool];
      const BufferId slot = in_turn && bundle.pool != SlotPool::none ? pool[bundle.turn % pool.size()]
                                                                     : add_for_unit(bundle.units.front(), name, role, sizes[i]);
      for (const int u : bundle.units)
        if (bytes_of(u) > 0) at(locations, u).buffer = slot;
    }
  }

  /// Adds a buffer that is named after the unit.
  BufferId add_for_unit(int u, std::string_view what, BufferRole role, std::size_t bytes) {
    return add_buffer(plan_, format("{} {}", what, units_.unit(u).name), role, bytes);
  }

  /// The buffer of one kind of state, by unit.
  using BufferOfUnit = std::map<int, BufferId>;

  /// Marks these buffers as offloaded to `space`, and adds slots for them on the device. Null: they stay on the device.
  void offload(const Space* space, const std::string& what, std::size_t inside, const BufferOfUnit& buffers) {
    if (!space) return;
    std::vector<Location> slots(static_cast<std::size_t>(units_.count()));
    const auto bytes_of = [&](int u) {
      const auto found = buffers.find(u);
      return found == buffers.end() ? 0 : at(plan_.buffers, found->second).bytes;
    };
    add_slots("loaded " + what, BufferRole::loaded, inside, true, bytes_of, slots);
    for (const auto& [u, buffer] : buffers) {
      PlanBuffer& kept = at(plan_.buffers, buffer);
      kept.slot = at(slots, u), kept.owner = {.unit = u}, kept.space = space;
    }
  }

  /// Keeps the inputs of the first recomputed segments on the host. They use two slots in turn: a segment reads one while the
  /// other is copied.
  void keep_inputs_on_host() {
    std::vector<int> kept;  // blocks
    std::array<std::size_t, 2> bytes = {};
    for (int b = 0; b < blocks_ && static_cast<std::size_t>(b) < options_.offloaded_inputs; b += segment())
      if (recomputed(b)) {
        std::size_t& most = bytes[kept.size() % 2];
        most = std::max(most, at(plan_.buffers, x(b)).bytes);
        kept.push_back(b);
      }
    std::vector<BufferId> slots;
    for (std::size_t i = 0; i < std::min(kept.size(), bytes.size()); ++i)
      slots.push_back(add_buffer(plan_, format("loaded x{}", i), BufferRole::activations, bytes[i]));
    for (std::size_t i = 0; i < kept.size(); ++i) {
      PlanBuffer& input = at(plan_.buffers, x(kept[i]));
      input.slot = slots[i % 2], input.owner = {.stage = kept[i] + 1}, input.space = &spaces::host, input.transient = false;
    }
  }

  void offload_state() {
    const auto [in_parameters, in_optimizer, in_gradients] = options_.places;
    expect(!in_parameters || in_optimizer, "if parameters are offloaded, the optimizer's state is, too");
    constexpr std::size_t updated_at_once = 2;  // units: one is updated while the next one is loaded
    BufferOfUnit masters, parameters, gradients, whole_gradients;
    std::map<std::size_t, BufferOfUnit> waiting_sums;  // by index
    std::map<std::string, BufferOfUnit> states;        // by name
    for (int u = 0; u < units_.count(); ++u) {
      if (units_.rounded(u)) masters[u] = at(plan_.master, u).buffer;
      parameters[u] = at(plan_.parameters, u).buffer;
      if (!units_.trained(u)) continue;
      gradients[u] = at(plan_.gradients, u).buffer;
      if (const BufferId whole = at(plan_.kept_whole_gradients, u).buffer; whole != gradients[u]) whole_gradients[u] = whole;
      if (plan_.sums_in_a_tree)
        for (std::size_t i = 0; i < at(plan_.waiting_sums, u).size(); ++i)
          waiting_sums[i][u] = at(plan_.waiting_sums, u)[i].buffer;
      auto buffer = at(plan_.optimizer_state, u).begin();
      for (const StateInfo& state : units_.unit(u).rule->states) states[std::string(state.name)][u] = *buffer++;
      if (!plan_.averages.empty() && units_.is_averaged(u)) states[average_state][u] = at(plan_.averages, u);
    }
    offload(in_parameters, "parameters", options_.parameter_slots, parameters);
    offload(in_gradients, "gradient", options_.gradient_slots, gradients);
    offload(in_gradients, "whole gradient", options_.gradient_slots, whole_gradients);
    for (const auto& [i, of_units] : waiting_sums)
      offload(in_gradients, format("sum {} of gradients", i + 1), options_.gradient_slots, of_units);
    offload(in_optimizer, "master", updated_at_once, masters);
    for (const auto& [name, of_units] : states) offload(in_optimizer, name, updated_at_once, of_units);
  }

  void add_buffers() {
    add_parameters();
    if (options_.training) {
      add_gradients();
      add_optimizer_state();
    }
    offload_state();
    updates_.add_direction_buffers();
    add_batch();
    if (options_.training) updates_.add_statistics_buffers();
    if (decodes()) add_decoding();
    add_host_buffers();
    add_activations();
    if (options_.training) add_backward_activations();
    if (options_.training) keep_inputs_on_host();
  }

  void add_parameters() {
    for (int u = 0; u < units_.count(); ++u) {
      const DType type = units_.unit(u).types.parameter;
      const bool part = units_.sharded_at_rest(u);
      if (units_.rounded(u))
        plan_.master.push_back(add_for_unit(u, "fp32", BufferRole::parameters,
                                            units_.scattered(u) ? units_.shard_bytes(u) : units_.whole_bytes(u)));
      const BufferId at_rest = add_buffer(plan_, (part ? "shard " : "") + units_.unit(u).name, BufferRole::parameters,
                                          part ? units_.shard_bytes(u, type) : units_.whole_bytes(u, type));
      plan_.parameters.emplace_back(at_rest, 0, part || units_.unit(u).shards == 1 ? 0 : units_.shard_bytes(u, type));
      if (!units_.rounded(u)) plan_.master.push_back(plan_.parameters.back());
      plan_.whole_parameters.emplace_back(at_rest);
    }
    plan_.wide_master = plan_.master;
    add_fp32_copy(
        "fp32 master", [&](int u) { return units_.has_16_bit_master(u) && !units_.updates_in_16_bits(u); }, plan_.wide_master);
    add_slots(
        "P", BufferRole::gathered_parameters, options_.parameter_slots, units_.gathers_in_turn(),
        [&](int u) { return units_.sharded_at_rest(u) ? units_.whole_bytes(u, units_.unit(u).types.parameter) : 0; },
        plan_.whole_parameters);
  }

  /// Returns the larger one of a size for updates and the same size for evaluations.
  template <class Size>
  std::size_t larger(const Size& size) const {
    return std::max(std::invoke(size, sizes_), std::invoke(size, evaluated_));
  }

  /// Adds memory for the fp32 copy of a rank's state. The units with has_copy(unit) use it in turn.
  template <class HasCopy>
  void add_fp32_copy(std::string name, const HasCopy& has_copy, std::vector<Location>& places) {
    std::size_t largest = 0;
    for (int u = 0; u < units_.count(); ++u)
      if (has_copy(u)) largest = std::max(largest, units_.shard_bytes(u));
    if (largest == 0) return;
    const BufferId copy = add_buffer(plan_, std::move(name), BufferRole::scratch, largest);
    for (int u = 0; u < units_.count(); ++u)
      if (has_copy(u)) at(places, u) = copy;
  }

  void add_gradients() {
    for (int u = 0; u < units_.count(); ++u) {
      const DType type = units_.unit(u).types.gradient;
      plan_.gradients.push_back(
          units_.trained(u) ? add_for_unit(u, "gradient", BufferRole::gradients, units_.shard_bytes(u, type)) : -1);
      const bool whole_is_kept = units_.trained(u) && units_.scattered(u) && units_.keeps_whole_gradients() &&
                                 (options_.micro_batches > 1 || !units_.has_16_bit_gradient(u));
      plan_.whole_gradients.push_back(
          whole_is_kept ? add_for_unit(u, "whole gradient", BufferRole::unreduced_gradients, units_.whole_bytes(u, type))
                        : plan_.gradients.back());
    }
    plan_.kept_whole_gradients = plan_.whole_gradients;
    add_slots(
        "Q", BufferRole::unreduced_gradients, gradient_slots(), true,
        [&](int u) { return units_.gradient_in_slot(u) ? units_.whole_bytes(u) : 0; }, plan_.whole_gradients);
    if (units_.sums_in_a_tree()) add_waiting_sums();
    plan_.wide_gradients = plan_.gradients;
    for (int u = 0; u < units_.count(); ++u)
      if (units_.has_16_bit_gradient(u)) at(plan_.wide_gradients, u) = at(plan_.whole_gradients, u);
    add_fp32_copy(
        "fp32 gradient", [&](int u) { return units_.has_16_bit_gradient(u) && units_.scattered(u); }, plan_.wide_gradients);
  }

  void add_optimizer_state() {
    for (int u = 0; u < units_.count(); ++u) {
      auto& states = plan_.optimizer_state.emplace_back();
      if (!units_.trained(u)) continue;
      for (const StateInfo& state : units_.unit(u).rule->states) {
        const DType type = state.extent == Extent::element ? options_.optimizer_state_type : DType::f32;
        states.push_back(add_for_unit(u, state.name, BufferRole::optimizer_state,
                                      units_.layout().state_numel(static_cast<std::size_t>(u), state.extent) * size_of(type)));
      }
    }
    for (int u = 0; u < units_.count() && options_.average_weights; ++u)
      plan_.averages.push_back(
          units_.is_averaged(u) ? add_for_unit(u, average_state, BufferRole::optimizer_state, units_.shard_bytes(u)) : -1);
  }

  void add_batch() {
    plan_.inputs = add_buffer(plan_, "inputs", BufferRole::batch, larger(&ModelSizes::inputs));
    plan_.targets = add_buffer(plan_, "targets", BufferRole::batch, larger(&ModelSizes::targets));
    if (options_.documents) plan_.positions = add_buffer(plan_, "positions", BufferRole::batch, larger(&ModelSizes::inputs));
    plan_.tables = add_buffer(plan_, "tables", BufferRole::batch, sizes_.tables);
    if (gathers_outputs() && sizes_.targets > 0)
      plan_.all_targets =
          add_buffer(plan_, "all targets", BufferRole::batch, sizes_.gathered_from * larger(&ModelSizes::targets));
    const std::size_t in_pieces = plan_.blocks_in_pieces;
    plan_.scratch = add_buffer(plan_, "scratch", BufferRole::scratch,
                               std::max(in_pieces == 0 || in_pieces < sizes_.blocks() ? larger(&ModelSizes::scratch) : 0,
                                        in_pieces > 0 ? larger(&ModelSizes::scratch_in_pieces) : 0));
    plan_.sums = add_buffer(plan_, "sums", BufferRole::scratch, sizeof(UpdateSums));
  }

  void add_decoding() {
    plan_.cache = options_.cache;
    plan_.rows = add_buffer(plan_, "rows", BufferRole::batch, 2 * sizes_.inputs);
    plan_.step = add_on_host("step", 3 * sizes_.inputs + options_.cache.sequences * sizeof(std::int32_t));
    plan_.logits = add_on_host("logits", sizes_.logits * options_.cache.sequences);
    for (int b = 0; b < blocks_; ++b)
      plan_.caches.push_back(add_buffer(plan_, format("cache{}", b), BufferRole::cache, at(sizes_.cache, b)));
  }

  void add_host_buffers() {
    const auto of_batch = [&](const ModelSizes& sizes) {
      return sizes.inputs + sizes.targets + (options_.documents ? sizes.inputs : 0);
    };
    const std::size_t of_update = std::max(options_.sums_for, options_.micro_batches) * of_batch(sizes_);
    plan_.tokens = add_on_host("tokens", options_.training ? 2 * std::max(of_update, of_batch(evaluated_)) : larger(of_batch));
    plan_.losses = add_on_host("losses", larger(&ModelSizes::losses));
    plan_.report = add_on_host("report", sizeof(UpdateSums) + sizeof(LossSum));
  }

  BufferId add_activation(std::string name, std::size_t bytes) {
    return add_buffer(plan_, std::move(name), BufferRole::activations, bytes, true);
  }

  /// Returns the largest of the sizes whose indices are in the class `rest` modulo `step`.
  static std::size_t largest(const std::vector<std::size_t>& sizes, int step = 1, int rest = 0) {
    std::size_t bytes = 0;
    for (int i = rest; i < static_cast<int>(sizes.size()); i += step) bytes = std::max(bytes, at(sizes, i));
    return bytes;
  }

  /// Evaluation alternates between two buffers for activations and has one for saved activations. Blocks that are recomputed in
  /// backward share buffers for saved activations, by position in their segment. The first kept blocks use these buffers, too:
  /// backward is done with them before it recomputes. Each shared buffer has the largest size that it needs.
  void add_activations() {
    for (int b = 0; b <= (options_.training ? blocks_ : 1); ++b)
      x_.push_back(add_activation(format("x{}", b), b > 1 ? at(sizes_.activations, b) : larger([&](const ModelSizes& sizes) {
                                    return largest(sizes.activations, 2, b);
                                  })));
    const auto kept_of = [&](const ModelSizes& sizes) {
      std::vector<std::size_t> bytes = recomputes_cheap() ? sizes.kept : sizes.saved;
      if (!sizes.saved_in_pieces.empty()) std::copy_n(sizes.saved_in_pieces.begin(), plan_.blocks_in_pieces, bytes.begin());
      return bytes;
    };
    const std::vector<std::size_t> kept = kept_of(sizes_);
    saved_.push_back(add_activation("saved0", larger([&](const ModelSizes& sizes) { return largest(kept_of(sizes)); })));
    std::vector<std::size_t> bytes;  // by saved_index()
    for (int b = 0; b < blocks_; ++b) {
      const int i = saved_index(b);
      bytes.resize(std::max(bytes.size(), static_cast<std::size_t>(i) + 1));
      at(bytes, i) = std::max(at(bytes, i), at(kept, b));
    }
    for (int i = 1; options_.training && i < static_cast<int>(bytes.size()); ++i)
      if (!recomputes() && recomputed_blocks() + i < first_block_of_any_backward())  // it does not reach this block
        saved_.push_back(saved_.front());
      else
        saved_.push_back(add_activation(format("saved{}", i), at(bytes, i)));
    if (gathers_outputs()) {
      plan_.all_outputs = add_activation(
          "all outputs", sizes_.gathered_from * larger([](const ModelSizes& sizes) { return sizes.activations.back(); }));
      for (const BufferId id : {x_.back(), x(blocks_ % 2), plan_.all_outputs}) share_no_memory(id);
    }
    if (sizes_.gathered_in_layers > 0)
      plan_.in_layers = add_buffer(plan_, "gathered in layers", BufferRole::activations, sizes_.gathered_in_layers);
    if (!recomputes_cheap()) return;
    plan_.cheap = add_activation("cheap", larger([&](const ModelSizes& sizes) {
                                   std::size_t most = 0;
                                   for (int b = 0; b < blocks_; ++b)
                                     most = std::max(most, at(sizes.saved, b) - at(sizes.kept, b));
                                   return most;
                                 }));
  }

  /// Gives a buffer memory that no other one shares, so that other streams than compute may use it.
  void share_no_memory(BufferId id) { at(plan_.buffers, id).transient = false; }

  bool gathers_outputs() const { return sizes_.gathered_from > 0; }
  bool trains_below_head() const { return lowest_trained_ < head_stage(); }

  void add_backward_activations() {
    dx_ = add_activation("dx", largest(sizes_.activations));
    if (gathers_outputs()) {
      plan_.all_dx = add_activation("all dx", sizes_.gathered_from * sizes_.outputs() * sizeof(float));
      plan_.gathered_dx = add_activation("gathered dx", sizes_.outputs() * sizeof(float));
      for (const BufferId id : {dx_, plan_.all_dx, plan_.gathered_dx}) share_no_memory(id);
    }
    for (int i = 1; recomputes() && i < segment(); ++i)
      recomputed_x_.push_back(add_activation(format("x+{}", i), largest(sizes_.activations, segment(), i)));
  }

  BufferId add_on_host(std::string name, std::size_t bytes) {
    const BufferId id = add_buffer(plan_, std::move(name), BufferRole::batch, bytes);
    at(plan_.buffers, id).space = &spaces::host;
    return id;
  }

  void add_waiting_sums() {
    plan_.sums_in_a_tree = true;
    plan_.waiting_sums.resize(static_cast<std::size_t>(units_.count()));
    for (int u = 0; u < units_.count(); ++u) {
      if (!units_.trained(u)) continue;
      expect(!units_.has_16_bit_gradient(u), "an invariant plan keeps sums of gradients in fp32");
      const std::size_t sums =
          sums_at_once(std::max(options_.sums_for, options_.micro_batches), !units_.is_replicated(u) || !units_.scattered(u));
      for (std::size_t i = 1; i < sums; ++i)
        at(plan_.waiting_sums, u)
            .emplace_back(add_for_unit(u, format("sum {} of gradients", i), BufferRole::gradients, units_.shard_bytes(u)));
    }
  }

  bool recomputes() const { return options_.checkpoint_activations && options_.checkpoint_policy == CheckpointPolicy::block; }
  bool recomputes_cheap() const {
    return options_.training && options_.checkpoint_activations && options_.checkpoint_policy == CheckpointPolicy::selective;
  }
  int segment() const { return recomputes() ? std::min(static_cast<int>(options_.checkpoint_every), blocks_) : 1; }
  /// The number of blocks that are recomputed, which are the first ones. The last segment is not, because backward begins with
  /// it.
  int recomputed_blocks() const {
    if (recomputes()) return (blocks_ - 1) / segment() * segment();
    return static_cast<int>(std::min(options_.recomputed_blocks, sizes_.blocks() - 1));
  }
  /// Recomputed blocks compute their MLP in pieces if the model divides it. So does the last block, if all blocks are to be
  /// recomputed. In a longer segment, this would cost a third forward pass of the MLP.
  std::size_t blocks_in_pieces() const {
    if (sizes_.saved_in_pieces.empty() || segment() > 1) return 0;
    return recomputes() ? sizes_.blocks() : std::min(options_.recomputed_blocks, sizes_.blocks());
  }
  /// The block at which backward ends. Backward goes from the last block to the first trained block, or to block 0 if the
  /// embedding is trained.
  int first_backward_block() const { return std::max(lowest_trained_, 1) - 1; }
  /// The same for all lists.
  int first_block_of_any_backward() const { return options_.input_gradients ? 0 : first_backward_block(); }
  bool recomputed(int block) const { return block < recomputed_blocks(); }
  /// The slots of unreduced gradients. At one rank a slot is only rounded or added to a sum. If the next block is recomputed in
  /// the meantime, a second slot saves no time.
  std::size_t gradient_slots() const {
    const bool is_hidden = !options_.reduces && segment() == 1 && recomputed_blocks() == blocks_ - 1;
    return is_hidden ? 1 : options_.gradient_slots;
  }
  BufferId x(int block) const { return at(x_, block); }
  int saved_index(int block) const { return recomputed(block) ? block % segment() : block - recomputed_blocks(); }
  BufferId saved(int block) const { return at(saved_, saved_index(block)); }
  /// The input of a block in backward: kept from forward, or recomputed in its segment.
  BufferId x_in_backward(int block) const {
    return recomputed(block) && block % segment() > 0 ? at(recomputed_x_, block % segment() - 1) : x(block);
  }

  /// `again` is the recomputation of forward during backward. `backward` contributes to gradients.
  enum class Pass { forward, again, backward };

  /// An operation on a stage, before gathers and reductions are added around it.
  struct Visit {
    Operation op;
    Pass pass;
    bool reads_parameters = true;
  };

  /// Returns the operands of a kind, in its order: those in `own` and, if they are not in it, those whose buffer all operations
  /// share. Leaves out operands without a buffer (-1).
  std::vector<Operand> operands_of(const Kind& kind, std::vector<Operand> own) const {
    static constexpr std::pair<OperandName, BufferId Plan::*> shared[] = {{tokens, &Plan::tokens},
                                                                          {step, &Plan::step},
                                                                          {losses, &Plan::losses},
                                                                          {logits, &Plan::logits},
                                                                          {report, &Plan::report},
                                                                          {inputs, &Plan::inputs},
                                                                          {rows, &Plan::rows},
                                                                          {targets, &Plan::targets},
                                                                          {scratch, &Plan::scratch},
                                                                          {positions, &Plan::positions},
                                                                          {cheap, &Plan::cheap},
                                                                          {sums, &Plan::sums},
                                                                          {all_outputs, &Plan::all_outputs},
                                                                          {all_targets, &Plan::all_targets},
                                                                          {all_dx, &Plan::all_dx},
                                                                          {gathered_dx, &Plan::gathered_dx}};
    own.insert(own.end(), {{dx, dx_}, {tables, sizes_.tables > 0 ? plan_.tables : -1}});
    for (const auto& [name, buffer] : shared) own.push_back({name, plan_.*buffer});
    std::vector<Operand> operands;
    for (const OperandSpec& spec : kind.operands) {
      const auto found = std::find_if(own.begin(), own.end(), [&](const Operand& one) { return one.name == spec.name; });
      if (found != own.end() && found->place.buffer >= 0) operands.push_back(*found);
    }
    return operands;
  }

  Visit visit(const Kind& kind, int stage, Pass pass, std::vector<Operand> own) const {
    const int block = stage == head_stage() ? -1 : stage - 1;
    if (block >= 0 && !sizes_.reads_inputs(block)) own.push_back({inputs, -1});  // -1: no such operand
    return {.op = {.kind = &kind,
                   .stream = StreamId::compute,
                   .stage = stage,
                   .block = block,
                   .operands = operands_of(kind, std::move(own))},
            .pass = pass};
  }

  /// If the layer of a block gathers during the passes of an update, this operation is a collective, too.
  Visit gathering(Visit visit) const {
    const std::size_t count = sizes_.gathers.empty() ? 0 : at(sizes_.gathers, visit.op.block);
    if (count == 0) return visit;
    visit.op.count = count, visit.op.group = GroupAxis::world;
    visit.op.operands.push_back({in_layers, plan_.in_layers});
    return visit;
  }

  /// A collective over the rows of all ranks. It runs on the stream of reductions, whose groups have all ranks.
  Visit exchange(const Kind& kind, Pass pass, std::size_t count, DType type, std::vector<Operand> own = {}) const {
    Visit exchange = visit(kind, head_stage(), pass, std::move(own));
    exchange.op.stream = StreamId::reduce, exchange.op.group = GroupAxis::world;
    exchange.op.count = count, exchange.op.type = type;
    exchange.reads_parameters = false;
    return exchange;
  }
  /// If the loss sees the rows of all ranks: gathers them. `from`: the output of the last block.
  void add_gathers_of_outputs(std::vector<Visit>& visits, BufferId from, const ModelSizes& sizes) const {
    if (!gathers_outputs()) return;
    visits.push_back(exchange(kinds::gather_outputs, Pass::forward, sizes.outputs(), sizes.type, {{OperandName::x, from}}));
    if (plan_.all_targets >= 0)
      visits.push_back(exchange(kinds::gather_targets, Pass::forward, sizes.targets / sizeof(float), DType::f32));
  }

  /// Backward adds to gradients that stay whole between micro-batches. It overwrites gradients in slots, which are added up in
  /// their reduction. An operation that writes both kinds adds to all of them; the slots are set to zero before.
  bool adds() const { return micro_batch_ > 0 && some_gradients_stay_; }
  bool clears(int u) const { return adds() && units_.gradient_in_slot(u); }

  Visit embedding_forward(BufferId to, const Kind& kind = kinds::embedding_forward) const {
    std::vector<Operand> own = {{x_out, to}};
    if (!sizes_.first_uses_scratch) own.push_back({scratch, -1});
    return visit(kind, 0, Pass::forward, std::move(own));
  }

  Visit block_forward(int b, BufferId from, BufferId to, BufferId saves) const {
    return visit(kinds::block_forward, b + 1, Pass::forward,
                 {{OperandName::x, from}, {x_out, to}, {OperandName::saved, saves}});
  }

  std::vector<Visit> update_visits() const {
    const int last = trains_below_head() ? first_backward_block() : blocks_;
    std::vector<Visit> visits = forward_and_backward(kinds::head, kinds::block_backward, Pass::backward, last);
    if (lowest_trained_ > 0) return visits;
    visits.push_back(visit(kinds::embedding_backward, 0, Pass::backward, {}));
    visits.back().reads_parameters = sizes_.first_backward_reads;
    return visits;
  }

  /// The pass `again` reads parameters as backward does, and contributes to no gradients.
  std::vector<Visit> visits_for_inputs() const {
    return forward_and_backward(kinds::head_for_inputs, kinds::block_backward_for_inputs, Pass::again, 0);
  }

  /// The visits of a micro-batch to the head, and back to block `last`. `pass` is that of these two kinds.
  std::vector<Visit> forward_and_backward(const Kind& head, const Kind& backward, Pass pass, int last) const {
    const auto in_update = [&](Visit one) { return pass == Pass::backward ? gathering(std::move(one)) : one; };
    std::vector<Visit> visits = {embedding_forward(x(0))};
    for (int b = 0; b < blocks_; ++b) visits.push_back(in_update(block_forward(b, x(b), x(b + 1), saved(b))));
    add_gathers_of_outputs(visits, x(blocks_), sizes_);
    visits.push_back(visit(head, head_stage(), pass, {{OperandName::x, x(blocks_)}}));
    if (gathers_outputs() && (pass != Pass::backward || trains_below_head()))
      visits.push_back(exchange(kinds::scatter_outputs, Pass::again, sizes_.outputs(), DType::f32));
    for (int b = blocks_ - 1; b >= last; --b) {
      if (recomputed(b) && (b + 1) % segment() == 0)
        for (Visit& one : recomputation(b + 1 - segment(), b)) visits.push_back(in_update(std::move(one)));
      if (recomputes_cheap() && b + 1 < blocks_)  // forward has computed the last block's activations in `cheap` last
        visits.push_back(
            visit(kinds::recompute_cheap, b + 1, Pass::again, {{OperandName::x, x(b)}, {OperandName::saved, saved(b)}}));
      visits.push_back(
          in_update(visit(backward, b + 1, pass, {{OperandName::x, x_in_backward(b)}, {OperandName::saved, saved(b)}})));
      visits.back().reads_parameters = sizes_.backward_reads(b);
    }
    return visits;
  }

  /// The recomputation of a segment's forward passes. The last output is not needed. A block that reads the inputs saves
  /// nothing, so there is nothing to recompute if it is the last one.
  std::vector<Visit> recomputation(int first, int last) const {
    std::vector<Visit> visits;
    for (int b = first; b <= last - (sizes_.reads_inputs(last) ? 1 : 0); ++b)
      visits.push_back(visit(
          kinds::recompute, b + 1, Pass::again,
          {{OperandName::x, x_in_backward(b)}, {OperandName::saved, saved(b)}, {x_out, b < last ? x_in_backward(b + 1) : -1}}));
    return visits;
  }

  std::vector<Visit> evaluation_visits() const {
    std::vector<Visit> visits = {embedding_forward(x(0))};
    for (int b = 0; b < blocks_; ++b) visits.push_back(block_forward(b, x(b % 2), x((b + 1) % 2), saved_.front()));
    add_gathers_of_outputs(visits, x(blocks_ % 2), evaluated_);
    visits.push_back(visit(kinds::head_loss, head_stage(), Pass::forward, {{OperandName::x, x(blocks_ % 2)}}));
    return visits;
  }

  bool decodes() const { return options_.cache.positions > 0; }

  std::vector<Visit> decoding_visits() const {
    std::vector<Visit> visits = {embedding_forward(x(0), kinds::embedding_decode)};
    for (int b = 0; b < blocks_; ++b)
      visits.push_back(visit(kinds::block_decode, b + 1, Pass::forward,
                             {{OperandName::x, x(b % 2)},
                              {cache, at(plan_.caches, b)},
                              {x_out, x((b + 1) % 2)},
                              {OperandName::saved, saved_.front()}}));
    visits.push_back(visit(kinds::head_logits, head_stage(), Pass::forward, {{OperandName::x, x(blocks_ % 2)}}));
    return visits;
  }

  Operation& emit(List& list, Operation op) {
    op.micro_batch = micro_batch_;
    return list.emplace_back(std::move(op));
  }

  /// Appends the visits, after an operation that reads their batch or step.
  void emit(List& list, const std::vector<Visit>& visits, const Kind& reading = kinds::read_batch) {
    std::vector<Operand> own;
    if (micro_batch_ > 0) own = {{sums, -1}};  // in the first micro-batch sums are set to zero
    emit(list, {.kind = &reading, .stream = StreamId::compute, .operands = operands_of(reading, std::move(own))});
    for (std::size_t v = 0; v < visits.size(); ++v) {
      const Visit& visit = visits[v];
      for (const std::size_t i : needed_by(visit)) gather(list, bundles_[i]);
      const bool forward = visit.pass == Pass::forward, contributes = visit.pass == Pass::backward;
      if (forward ? options_.forward_prefetch : options_.backward_prefetch == BackwardPrefetch::pre) prefetch(list, visits, v);
      Operation op = visit.op;
      for (const int u : at(units_of_stage_, visit.op.stage)) {
        if (contributes && clears(u) && at(last_stage_, u) == visit.op.stage)
          emit(list, {.kind = &kinds::clear,
                      .stream = StreamId::compute,
                      .unit = u,
                      .count = units_.unit(u).padded_numel,
                      .operands = {{whole_gradient, at(plan_.whole_gradients, u)}}});
        if (visit.reads_parameters) op.operands.push_back({weights, at(plan_.whole_parameters, u)});
      }
      for (const int u : at(units_of_stage_, visit.op.stage))
        if (contributes && units_.trained(u)) op.operands.push_back({gradients, at(plan_.whole_gradients, u)});
      op.accumulate = contributes && adds();
      emit(list, std::move(op));
      for (const std::size_t i : needed_by(visit))
        if (!stays(i, visits, v)) release_bundle(list, bundles_[i]);
      if (!forward && options_.backward_prefetch == BackwardPrefetch::post) prefetch(list, visits, v);
      if (contributes)
        for (const int u : at(units_of_stage_, visit.op.stage))
          if (units_.trained(u) && at(first_stage_, u) == visit.op.stage) reduce(list, u);
    }
  }

  /// Returns the bundles that must be gathered for a visit, in their order. A visit has a few bundles and a model may have
  /// thousands, so loops over visits must not look at all bundles.
  std::span<const std::size_t> needed_by(const Visit& visit) const {
    if (!visit.reads_parameters) return {};
    return at(gathered_at_stage_, visit.op.stage);
  }

  /// Returns true if bundle i stays gathered after visit v: a later visit needs it and, if bundles share slots, no other bundle
  /// of its pool is needed before.
  bool stays(std::size_t i, const std::vector<Visit>& visits, std::size_t v) const {
    for (std::size_t next = v + 1; next < visits.size(); ++next) {
      const std::span<const std::size_t> needed = needed_by(visits[next]);
      if (std::ranges::find(needed, i) != needed.end()) return true;
      if (!has_own_slot(bundles_[i]))
        for (const std::size_t other : needed)
          if (bundles_[other].pool == bundles_[i].pool) return false;
    }
    return false;
  }

  bool has_own_slot(const Bundle& bundle) const { return bundle.pool == SlotPool::none || !units_.gathers_in_turn(); }

  bool slot_is_free(const Bundle& bundle) const {
    if (has_own_slot(bundle)) return true;
    const std::size_t slots = slots_of(bundle.pool, options_.parameter_slots);
    return std::none_of(bundles_.begin(), bundles_.end(), [&](const Bundle& other) {
      return other.gathered && other.pool == bundle.pool && other.turn % slots == bundle.turn % slots;
    });
  }

  void gather(List& list, Bundle& bundle) {
    if (bundle.gathered) return;
    expect(slot_is_free(bundle), "a unit is gathered into a slot that another one holds");
    bundle.gathered = true;
    for (const int u : bundle.units)
      if (units_.sharded_at_rest(u)) emit(list, gather_operation(units_, plan_, u));
  }

  /// Gathers the parameters of the visits after v, as far as slots are free.
  void prefetch(List& list, const std::vector<Visit>& visits, std::size_t v) {
    const bool forward = visits[v].pass == Pass::forward;
    const std::span<const std::size_t> here = needed_by(visits[v]);
    std::vector<std::size_t> ahead;
    for (std::size_t next = v + 1; next < visits.size() && (visits[next].pass == Pass::forward) == forward; ++next)
      for (const std::size_t i : needed_by(visits[next])) {
        if (std::ranges::find(here, i) != here.end() || std::ranges::find(ahead, i) != ahead.end()) continue;
        Bundle& bundle = bundles_[i];
        if (ahead.size() + 1 >= options_.parameter_slots || !(bundle.gathered || slot_is_free(bundle))) return;
        gather(list, bundle);
        ahead.push_back(i);
      }
  }

  void release_bundle(List& list, Bundle& bundle) {
    bundle.gathered = false;
    for (const int u : bundle.units)
      if (units_.sharded_at_rest(u))
        emit(list, {.kind = &kinds::release,
                    .stream = StreamId::compute,
                    .unit = u,
                    .operands = {{weights, at(plan_.whole_parameters, u)}}});
  }

  /// Rounds fp32 sums of a unit's gradient to the 16-bit gradient that is kept between micro-batches. `wide` is the place of
  /// these sums, which are of the whole gradient or of this rank's part. If `add` is true, the kept gradient is added before
  /// rounding. If the sum is `complete`, of all micro-batches and ranks, the squares of the rounded gradient are added to the
  /// update's sums.
  void keep_gradient(List& list, int u, const Location& wide, bool add, bool complete) {
    const bool is_whole = wide == at(plan_.whole_gradients, u);
    const Kind* const kind = is_whole ? (complete ? &kinds::round_whole_gradient_and_square : &kinds::round_whole_gradient)
                                      : (complete ? &kinds::round_gradient_and_square : &kinds::round_gradient);
    Operation op = {.kind = kind,
                    .stream = StreamId::reduce,
                    .unit = u,
                    .accumulate = add,
                    .count = is_whole ? units_.unit(u).padded_numel : units_.shard_numel(u),
                    .type = units_.unit(u).types.gradient,
                    .operands = {{is_whole ? whole_gradient : gradient, wide},
                                 is_whole ? Operand{kept_whole_gradient, at(plan_.kept_whole_gradients, u)}
                                          : Operand{kept_gradient, at(plan_.gradients, u)}}};
    if (complete) op.operands.push_back({sums, plan_.sums});
    emit(list, std::move(op));
  }

  /// Reduces a unit's gradient, which is complete on this rank for this micro-batch: it becomes partial sum number `i` over all
  /// ranks or, if `add` is true, is added to that sum. In a tree (see sums_at_once()) the sum is complete in every micro-batch,
  /// and partial sums are then added to each other. Otherwise there is one partial sum, and replicas add theirs after the last
  /// micro-batch. If gradients are kept in 16 bits, each sum is computed in fp32 and then rounded by keep_gradient().
  void reduce(List& list, int u) {
    const auto m = static_cast<unsigned>(micro_batch_);
    const bool last = m + 1 == options_.micro_batches, tree = plan_.sums_in_a_tree, narrow = units_.has_16_bit_gradient(u),
               scattered = units_.scattered(u), replicated = units_.is_replicated(u),
               whole_are_kept = !scattered || units_.keeps_whole_gradients(),
               add = tree ? m % 2 == 1 && !(scattered && replicated) : m > 0 && !whole_are_kept;
    const int i = tree ? std::popcount(m) - (add ? 1 : 0) : 0;
    const Location whole = at(plan_.whole_gradients, u), mine = scattered ? partial_sum(u, i) : whole;
    if (narrow && whole_are_kept && options_.micro_batches > 1) keep_gradient(list, u, whole, m > 0, false);
    if (scattered && (last || !whole_are_kept)) {
      scatter_gradient(list, u, mine, add && !narrow);
      if (narrow && (add || !last || !replicated)) keep_gradient(list, u, mine, add, last && !replicated);
    }
    if (replicated && (last || tree)) {
      sum_over_replicas(list, u, mine);
      if (narrow) keep_gradient(list, u, mine, false, last);
    }
    if (tree && !scattered) emit_sum(list, u, whole, partial_sum(u, i), add);
    if (tree) join_sums(list, u, i, last ? 1 : std::popcount(m + 1));
    if (last && !narrow) emit(list, kinds::add_squares, u, {{gradient, at(plan_.wide_gradients, u)}, {sums, plan_.sums}});
  }

  /// The place of a partial sum of a unit's gradient in fp32. Number 0 is the total in the end; only a tree has others.
  Location partial_sum(int u, int i) const {
    return i == 0 ? at(plan_.wide_gradients, u) : at(at(plan_.waiting_sums, u), i - 1);
  }

  /// Appends a step of reduce(). It works on this rank's part of a unit's gradient.
  void emit(List& list, const Kind& kind, int u, std::vector<Operand> operands, bool add = false, DType sent = DType::f32,
            GroupAxis group = GroupAxis::shard) {
    emit(list, {.kind = &kind,
                .stream = StreamId::reduce,
                .unit = u,
                .accumulate = add,
                .group = group,
                .count = units_.shard_numel(u),
                .reduce_dtype = sent,
                .operands = std::move(operands)});
  }

  /// Reduce-scatters a unit's whole gradient over the shard axis. This rank's part of the sum is written to `to`.
  void scatter_gradient(List& list, int u, const Location& to, bool add) {
    emit(list, kinds::reduce_scatter_gradient, u, {{whole_gradient, at(plan_.whole_gradients, u)}, {sum, to}}, add,
         units_.unit(u).types.reduce);
  }

  /// All-reduces a unit's gradient in place, over the ranks that have the same part of it. Reduced sums stay fp32.
  void sum_over_replicas(List& list, int u, const Location& where) {
    emit(list, kinds::all_reduce_gradient, u, {{sum, where}}, false,
         units_.scattered(u) ? DType::f32 : units_.unit(u).types.reduce, units_.replicas(u));
  }

  /// Adds the sum at `a` to that at `b` or, if `add` is false, copies it there.
  void emit_sum(List& list, int u, const Location& a, const Location& b, bool add) {
    emit(list, kinds::sum_gradients, u, {{from, a}, {to, b}}, add);
  }

  /// Adds the latest partial sum, number `i`, to the one before it, until `left` sums are left.
  void join_sums(List& list, int u, int i, int left) {
    for (; i >= left; --i) emit_sum(list, u, partial_sum(u, i), partial_sum(u, i - 1), true);
  }

  const UnitPlacement units_;
  const PlanOptions& options_;
  const ModelSizes &sizes_, &evaluated_;
  const int blocks_;
  bool some_gradients_stay_ = false;
  Plan plan_;
  UpdateBuilder updates_;  // over units_ and plan_
  int micro_batch_ = 0;
  int lowest_trained_ = 1 << 30;  // the first stage with trained parameters
  std::vector<std::vector<int>> units_of_stage_;
  std::vector<int> first_stage_, last_stage_;                // of each unit
  std::vector<Bundle> bundles_;                              // in order of their first stage
  std::vector<std::vector<std::size_t>> gathered_at_stage_;  // by stage: its bundles that are sharded between uses
  std::vector<BufferId> x_, saved_, recomputed_x_;
  BufferId dx_ = -1;
};

}  // namespace

Plan build_plan(const Layout& layout, const Placement& placement, const ModelSizes& sizes, const PlanOptions& options,
                const ModelSizes* evaluated) {
  return Builder(layout, placement, sizes, options, evaluated ? *evaluated : sizes).build();
}

}  // namespace fsdp
