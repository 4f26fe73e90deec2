// From whole tensors, wherever they are, to one rank's shard.
#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/stored.hpp"

namespace fsdp {

namespace {

constexpr std::size_t most_at_once = std::size_t{1} << 20;  // elements

/// Calls read(parameter, range, out) for every slice of the units that have room.
template <class Read>
void fill_shard(const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                const std::vector<std::span<float>>& units, Read&& read) {
  expect(units.size() == layout.units().size(), "a state has all units");
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (units[unit].empty()) continue;
    expect(units[unit].size() == layout.shard_numel(unit), "a state covers the shard");
    std::fill(units[unit].begin(), units[unit].end(), 0.0f);  // padding
    for (const Slice& slice : layout.slices(unit, shard))
      read(parameters[slice.parameter], slice.range, units[unit].data() + slice.shard_offset);
  }
}

void check_shapes(const TensorSource& source, const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    if (!source.has(parameter.name))
      throw UserError(format("{} has no tensor {} (the model needs it) check the model options, or use another source",
                             source.description(), parameter.name));
    const Shape found = source.shape(parameter.name);
    if (found != parameter.shape)
      throw UserError(format("{} of {} has shape {} (the model needs {}) check the model options, or use another source",
                             parameter.name, source.description(), to_string(found), to_string(parameter.shape)));
  }
}

}  // namespace

void load_states(const CheckpointReader& reader, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                 std::span<const ShardState> states) {
  check_shapes(reader, parameters);
  std::vector<float> piece;
  for (const ShardState& state : states) {
    expect(state.units.size() == layout.units().size(), "a state has all units");
    const auto& known = reader.states();
    const bool is_known = std::find(known.begin(), known.end(), state.name) != known.end();
    for (std::size_t u = 0; u < state.units.size(); ++u) {
      if (state.units[u].empty()) continue;
      expect(state.numel(u) == layout.state_numel(u, state.extent), "a state covers what the rank has");
      std::fill(state.units[u].begin(), state.units[u].end(), std::byte{0});  // padding, and what was not trained
      const auto load = [&](std::size_t p, Range range, std::size_t offset) {
        const std::string& name = parameters[p].name;
        if (state.name != "parameters" && !reader.was_trained(name)) return;
        if (is_known && !reader.has_state(state.name, name)) return;
        for (std::size_t at = 0; at < range.size(); at += most_at_once) {
          piece.resize(std::min(most_at_once, range.size() - at));
          reader.read_state(state.name, name, {range.begin + at, range.begin + at + piece.size()}, piece.data());
          state.write(u, offset + at, piece);
        }
      };
      if (state.extent == Extent::element)
        for (const Slice& slice : layout.slices(u, shard)) load(slice.parameter, slice.range, slice.shard_offset);
      else  // all ranks have all of it, as rank 0 of one
        for (const stored::WrittenSlice& slice : stored::written_slices(layout, 0, layout.shards(), state.extent))
          if (slice.unit == u) load(slice.parameter, slice.range, slice.offset);
    }
  }
}

void load_parameters(const TensorSource& source, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                     const std::vector<std::span<float>>& units) {
  check_shapes(source, parameters);
  fill_shard(parameters, layout, shard, units,
             [&](const Parameter& parameter, Range range, float* out) { source.read(parameter.name, range, out); });
}

}  // namespace fsdp
