// From whole tensors, wherever they are, to one rank's shard.
#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"
#include "checkpoint/checkpoint.hpp"

namespace fsdp {

namespace {

/// Calls read(parameter, range, out) for every slice of the shard.
template <class Read>
void fill_shard(const std::vector<Parameter>& parameters, const Layout& layout, int shard, std::span<float> values,
                Read&& read) {
  expect(values.size() == layout.total_shard_numel(), "a state covers the shard");
  std::fill(values.begin(), values.end(), 0.0f);  // padding
  for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
    for (const Slice& slice : layout.slices(unit, shard))
      read(parameters[slice.parameter], slice.range, values.data() + layout.shard_offset(unit) + slice.shard_offset);
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
    fill_shard(parameters, layout, shard, state.values, [&](const Parameter& parameter, Range range, float* out) {
      reader.read_state(state.name, parameter.name, range, out);
    });
}

void load_parameters(const TensorSource& source, const std::vector<Parameter>& parameters, const Layout& layout, int shard,
                     std::span<float> values) {
  check_shapes(source, parameters);
  fill_shard(parameters, layout, shard, values,
             [&](const Parameter& parameter, Range range, float* out) { source.read(parameter.name, range, out); });
}

}  // namespace fsdp
