// From whole tensors, wherever they are, to one rank's shard.
#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"

namespace fsdp {

namespace {

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
  for (const ShardState& state : states)
    fill_shard(parameters, layout, shard, state.units, [&](const Parameter& parameter, Range range, float* out) {
      const auto& known = reader.states();
      const bool untrained =
          std::find(known.begin(), known.end(), state.name) != known.end() && !reader.has_state(state.name, parameter.name);
      if (!untrained) reader.read_state(state.name, parameter.name, range, out);
    });
}

void load_parameters(const TensorSource& source, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                     const std::vector<std::span<float>>& units) {
  check_shapes(source, parameters);
  fill_shard(parameters, layout, shard, units,
             [&](const Parameter& parameter, Range range, float* out) { source.read(parameter.name, range, out); });
}

}  // namespace fsdp
