#include "fsdp/layout.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/format.hpp"

namespace fsdp {

namespace {

/// Which parameters form which unit: the root first, then the blocks in groups.
std::vector<Unit> wrap(const std::vector<Parameter>& parameters, const WrapPolicy& policy) {
  std::vector<Unit> units(1);
  units[0].name = "root";
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    std::size_t unit = 0;
    if (parameters[p].block >= 0) {
      const std::size_t block = static_cast<std::size_t>(parameters[p].block);
      unit = 1 + block / policy.blocks_per_unit;
      if (unit >= units.size()) units.resize(unit + 1);
      if (units[unit].name.empty())
        units[unit].name = format("block {}", block);
      else if (policy.blocks_per_unit > 1)
        units[unit].name = format("blocks {}-{}", (unit - 1) * policy.blocks_per_unit, block);
    }
    units[unit].parameters.push_back(p);
  }
  return units;
}

}  // namespace

Layout::Layout(const std::vector<Parameter>& parameters, const WrapPolicy& policy, int shards, UnitTypes types)
    : shards_(shards) {
  expect(shards >= 1 && policy.blocks_per_unit >= 1, "a layout needs at least one shard and one block per unit");
  for (const Parameter& parameter : parameters) {
    numels_.push_back(numel(parameter.shape));
    const std::size_t block = static_cast<std::size_t>(std::max(parameter.block, 0));
    if (parameter.block >= 0 && block >= unit_of_block_.size())
      unit_of_block_.resize(block + 1, 1 + block / policy.blocks_per_unit);
  }
  units_ = wrap(parameters, policy);
  shard_offsets_.push_back(0);
  for (Unit& unit : units_) {
    unit.types = types;
    std::size_t end = 0;
    for (const std::size_t p : unit.parameters) {
      const std::size_t offset = round_up(end, flat_alignment);
      if (offset > end) unit.gaps.push_back({end, offset});
      unit.offsets.push_back(offset);
      unit.numel += numels_[p];
      end = offset + numels_[p];
    }
    unit.padded_numel = round_up(end, flat_alignment * static_cast<std::size_t>(shards));
    if (unit.padded_numel > end) unit.gaps.push_back({end, unit.padded_numel});
    shard_offsets_.push_back(shard_offsets_.back() + unit.padded_numel / static_cast<std::size_t>(shards));
  }
}

std::vector<Slice> Layout::slices(std::size_t unit_index, int shard) const {
  const Unit& unit = units_.at(unit_index);
  const std::size_t length = shard_numel(unit_index);
  const Range mine{static_cast<std::size_t>(shard) * length, (static_cast<std::size_t>(shard) + 1) * length};
  std::vector<Slice> result;
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const std::size_t offset = unit.offsets[i];
    const Range part = intersect(mine, {offset, offset + numels_[unit.parameters[i]]});
    if (!part.empty())
      result.push_back({unit.parameters[i], {part.begin - offset, part.end - offset}, part.begin - mine.begin});
  }
  return result;
}

}  // namespace fsdp
