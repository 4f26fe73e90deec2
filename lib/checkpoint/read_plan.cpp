#include "checkpoint/read_plan.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "checkpoint/stored.hpp"

namespace fsdp {

StoredParts::StoredParts(const std::vector<Parameter>& parameters, const Layout& layout, int world_size) {
  std::vector<std::array<std::vector<StoredPart>, 3>*> of_parameter;
  for (const Parameter& parameter : parameters) of_parameter.push_back(&parts_[parameter.name]);
  for (const Extent extent : {Extent::element, Extent::row, Extent::column})
    for (int rank = 0; rank < world_size; ++rank)
      for (const stored::WrittenSlice& slice : stored::written_slices(layout, rank, world_size, extent))
        (*of_parameter[slice.parameter])[static_cast<std::size_t>(extent)].push_back({slice.range, rank});
  for (auto* const parts : of_parameter)  // the loop above adds the parts rank by rank
    std::sort(parts->front().begin(), parts->front().end(),
              [](const StoredPart& a, const StoredPart& b) { return a.range.begin < b.range.begin; });
}

std::span<const StoredPart> StoredParts::of(const std::string& name, Extent extent) const {
  const auto found = parts_.find(name);
  expect(found != parts_.end(), "the checkpoint's model has this parameter");
  return found->second[static_cast<std::size_t>(extent)];
}

std::span<const StoredPart> StoredParts::of(const std::string& name, Range range, Extent extent) const {
  const std::span<const StoredPart> all = of(name, extent);
  const auto first =
      std::partition_point(all.begin(), all.end(), [&](const StoredPart& part) { return part.range.end <= range.begin; });
  const auto last =
      std::partition_point(first, all.end(), [&](const StoredPart& part) { return part.range.begin < range.end; });
  return {first, last};
}

std::vector<PlannedRead> plan_reads(const StoredParts& stored, const std::vector<Parameter>& parameters, const Layout& layout,
                                    int shard, Extent extent) {
  std::vector<PlannedRead> plan;
  const auto add = [&](std::size_t unit, std::size_t parameter, Range range, std::size_t offset) {
    for (const StoredPart& part : stored.of(parameters[parameter].name, range, extent)) {
      const Range common = intersect(part.range, range);
      plan.push_back({part.rank, unit, parameter, common, offset + (common.begin - range.begin)});
    }
  };
  if (extent == Extent::element)
    for (std::size_t unit = 0; unit < layout.units().size(); ++unit)
      for (const Slice& slice : layout.slices(unit, shard)) add(unit, slice.parameter, slice.range, slice.shard_offset);
  else  // a state by row or column: every rank has all of it, and rank 0 wrote it
    for (const stored::WrittenSlice& slice : stored::written_slices(layout, 0, layout.shards(), extent))
      add(slice.unit, slice.parameter, slice.range, slice.offset);
  std::stable_sort(plan.begin(), plan.end(), [](const PlannedRead& a, const PlannedRead& b) { return a.rank < b.rank; });
  return plan;
}

}  // namespace fsdp
