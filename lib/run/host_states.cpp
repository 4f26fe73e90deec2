#include "run/host_states.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "base/error.hpp"

namespace fsdp {

namespace {

constexpr std::size_t most_moved_at_once = std::size_t{1} << 20;  // elements

/// The elements of a parameter in a state with one element for each row or column of the unit's matrices.
Range factors_of_parameter(const Layout& layout, std::size_t unit, std::size_t parameter, Extent extent) {
  Range range{0, 0};
  for (const std::size_t p : layout.units()[unit].parameters) {
    const Shape& shape = layout.shape(p);
    range.begin = range.end;
    if (shape.size() > 1) range.end += extent == Extent::row ? numel(shape) / shape.back() : shape.back();
    if (p == parameter) break;
  }
  return range;
}

}  // namespace

HostStates::HostStates(ShardedModel& model)
    : layout_(model.layout()),
      shard_(model.shard()),
      is_first_copy_(model.mesh().replicate().rank() == 0),
      unit_of_(layout_.units_of_parameters()) {
  const std::vector<ShardState> states = model.executor().states();
  std::size_t count = 0;
  for (const ShardState& state : states)
    for (std::size_t u = 0; u < state.units.size(); ++u) count += state.numel(u);
  memory_ = allocate_host(count * sizeof(float));
  auto* next = reinterpret_cast<float*>(memory_.data());
  for (const ShardState& state : states) {
    State& copy = states_.emplace_back(State{state.name, state.extent, {}});
    for (std::size_t u = 0; u < state.units.size(); ++u) {
      const std::span<float> unit = copy.units.emplace_back(next, state.numel(u));
      if (!unit.empty()) state.read(u, 0, unit);
      next += unit.size();
    }
  }
}

const HostStates::State* HostStates::find(const std::string& name) const {
  const auto found = std::find_if(states_.begin(), states_.end(), [&](const State& state) { return state.name == name; });
  return found == states_.end() ? nullptr : &*found;
}

void HostStates::copy_to(ShardedModel& model) const {
  for (const ShardState& state : model.executor().states())
    for (std::size_t u = 0; u < state.units.size(); ++u)
      if (!state.units[u].empty()) state.write(u, 0, find(state.name)->units[u]);
}

void HostStates::move_to(ShardedModel& model, Communicator& world) const {
  for (const ShardState& to : model.executor().states()) {
    const State* const same = find(to.name);
    for (std::size_t u = 0; u < to.units.size(); ++u) {
      expect(!model.layout().units()[u].quantized, "a model with quantized matrices is not moved");
      if (!model.layout().units()[u].trainable && to.name != parameters_state) continue;
      if (!model.layout().units()[u].is_averaged() && to.name == average_state) continue;
      for (const std::size_t p : model.layout().units()[u].parameters) {
        const State* const from = same && has(*same, p) ? same : to.name == average_state ? find(parameters_state) : nullptr;
        if (!from) continue;
        if (to.extent != Extent::element)
          move_factors(*from, p, to, u, model.layout());
        else
          move_elements(*from, p, to, u, model.layout(), model.shard(), world);
      }
    }
  }
}

/// Every element is set on one rank, and zero on the others. The ranks add up the bits of the numbers as integers, which is
/// exact.
void HostStates::move_elements(const State& from, std::size_t parameter, const ShardState& to, std::size_t unit,
                               const Layout& layout, int shard, Communicator& world) const {
  const std::size_t old_unit = unit_of_[parameter], all = numel(layout.shape(parameter));
  const bool mine = is_first_copy_ && (layout_.units()[old_unit].sharded || shard_ == 0);
  std::vector<std::int64_t> bits;
  std::vector<float> values;
  for (Range piece{0, std::min(all, most_moved_at_once)}; !piece.empty();
       piece = {piece.end, std::min(all, piece.end + most_moved_at_once)}) {
    bits.assign(piece.size(), 0);
    for (const Slice& slice : mine ? layout_.slices(old_unit, shard_) : std::vector<Slice>()) {
      const Range common = slice.parameter == parameter ? intersect(piece, slice.range) : Range{0, 0};
      for (std::size_t i = common.begin; i < common.end; ++i)
        bits[i - piece.begin] =
            std::bit_cast<std::uint32_t>(from.units[old_unit][slice.shard_offset + (i - slice.range.begin)]);
    }
    world.sum(bits);
    for (const Slice& slice : layout.slices(unit, shard)) {
      const Range common = slice.parameter == parameter ? intersect(piece, slice.range) : Range{0, 0};
      if (common.empty()) continue;
      values.resize(common.size());
      for (std::size_t i = common.begin; i < common.end; ++i)
        values[i - common.begin] = std::bit_cast<float>(static_cast<std::uint32_t>(bits[i - piece.begin]));
      to.write(unit, slice.shard_offset + (common.begin - slice.range.begin), values);
    }
  }
}

/// All ranks have the same factors.
void HostStates::move_factors(const State& from, std::size_t parameter, const ShardState& to, std::size_t unit,
                              const Layout& layout) const {
  const std::size_t old_unit = unit_of_[parameter];
  const Range there = factors_of_parameter(layout_, old_unit, parameter, to.extent);
  const std::span<const float> factors = from.units[old_unit].subspan(there.begin, there.size());
  to.write(unit, factors_of_parameter(layout, unit, parameter, to.extent).begin, factors);
}

}  // namespace fsdp
