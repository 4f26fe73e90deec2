#include "plan/layout.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.hpp"

namespace fsdp {

Layout::Layout(const std::vector<Parameter>& parameters, const std::vector<UnitSpec>& units, int shards, UnitTypes types,
               std::vector<std::string> stage_names)
    : shards_(shards), types_(types), stage_names_(std::move(stage_names)) {
  expect(shards >= 1, "a layout needs at least one shard");
  expect(types.master == DType::f32 || (types.master == DType::bf16 && types.parameter == DType::bf16),
         "masters are fp32, or the bf16 parameters themselves");
  expect(types.gradient == DType::f32 || types.gradient == DType::bf16, "gradients are kept in fp32 or bf16");
  for (const Parameter& parameter : parameters) {
    shapes_.push_back(parameter.shape);
    numels_.push_back(parameter.kept_numel());
  }
  std::vector<int> seen(parameters.size());
  for (const UnitSpec& spec : units) {
    Unit& unit = units_.emplace_back(Unit{spec, {}, 0, 0, {}, spec.sharded ? shards : 1, types});
    if (unit.quantized || unit.rule->is_of_state) unit.types = {};  // words of 4 bytes; fp32
    if (!unit.trainable) unit.types.master = unit.types.parameter;  // no optimizer needs more digits
    std::size_t end = 0;
    for (const std::size_t p : unit.parameters) {
      ++seen.at(p);
      const std::size_t offset = round_up(end, flat_alignment);
      if (offset > end) unit.gaps.push_back({end, offset});
      unit.offsets.push_back(offset);
      unit.numel += numels_[p];
      end = offset + numels_[p];
    }
    unit.padded_numel = round_up(end, flat_alignment * static_cast<std::size_t>(unit.shards));
    if (unit.padded_numel > end) unit.gaps.push_back({end, unit.padded_numel});
  }
  for (const int count : seen) expect(count == 1, "every parameter is in one unit");
}

std::vector<bool> Layout::trained() const {
  std::vector<bool> all(shapes_.size());
  for (const Unit& unit : units_)
    for (const std::size_t p : unit.parameters) all[p] = unit.trainable;
  return all;
}

std::vector<std::size_t> Layout::units_of_parameters() const {
  std::vector<std::size_t> all(shapes_.size());
  for (std::size_t u = 0; u < units_.size(); ++u)
    for (const std::size_t p : units_[u].parameters) all[p] = u;
  return all;
}

std::vector<Slice> Layout::slices(std::size_t unit_index, int shard) const {
  const Unit& unit = units_.at(unit_index);
  const std::size_t length = shard_numel(unit_index);
  const std::size_t part = unit.shards == 1 ? 0 : static_cast<std::size_t>(shard);
  const Range mine{part * length, (part + 1) * length};
  std::vector<Slice> result;
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const std::size_t offset = unit.offsets[i];
    const Range common = intersect(mine, {offset, offset + numels_[unit.parameters[i]]});
    if (!common.empty())
      result.push_back({unit.parameters[i], {common.begin - offset, common.end - offset}, common.begin - mine.begin});
  }
  return result;
}

std::size_t Layout::state_numel(std::size_t unit, Extent extent) const {
  if (extent == Extent::element) return shard_numel(unit);
  std::size_t count = 0;
  for (const std::size_t p : units_.at(unit).parameters)
    if (shapes_[p].size() > 1) count += extent == Extent::row ? numels_[p] / shapes_[p].back() : shapes_[p].back();
  return count;
}

Range Layout::statistics(std::size_t unit, int round) const {
  Range words{0, 0};
  for (std::size_t u = 0; u <= unit; ++u) {
    words.begin = words.end;
    const Statistics& of_rule = units_.at(u).rule->statistics;
    if (!units_[u].trainable || round >= of_rule.rounds) continue;
    for (const std::size_t p : units_[u].parameters) words.end += of_rule.words(shapes_[p], round);
  }
  return words;
}

std::size_t Layout::statistics_words(int round) const { return statistics(units_.size() - 1, round).end; }

UnitParts parts_of_unit(const Layout& layout, std::size_t unit_index, int shard,
                        const std::vector<ParameterSettings>& settings) {
  const Unit& unit = layout.units().at(unit_index);
  const Statistics& statistics = unit.rule->statistics;
  UnitParts parts;
  std::vector<std::size_t> position(settings.size());
  UnitTensor next;
  for (const std::size_t p : unit.parameters) {
    const Shape& shape = layout.shape(p);
    position[p] = parts.tensors.size();
    next.is_matrix = shape.size() > 1;
    next.numel = numel(shape);
    next.columns = shape.back();
    next.rows = next.numel / next.columns;
    parts.tensors.push_back(next);
    if (next.is_matrix) next.first_row += next.rows, next.first_column += next.columns;
    for (int round = 0; round < statistics.rounds; ++round)
      next.words[static_cast<std::size_t>(round)] += statistics.words(shape, round);
  }
  for (const Slice& slice : layout.slices(unit_index, shard)) {
    const ParameterSettings& how = settings[slice.parameter];
    parts.slices.push_back({slice.parameter, slice.range, slice.shard_offset, position[slice.parameter],
                            how.learning_rate_scale, how.weight_decay, how.momentum});
  }
  return parts;
}

std::vector<std::vector<int>> matrix_owners(const Layout& layout, int ranks, std::size_t at_once) {
  std::vector<std::vector<int>> owners(layout.units().size());
  struct Matrix {
    double cost;
    std::size_t unit, position;
  };
  std::vector<Matrix> group;
  std::size_t units = 0;
  std::vector<double> total(static_cast<std::size_t>(ranks));  // work of each rank so far
  const auto deal_out = [&] {
    std::stable_sort(group.begin(), group.end(), [](const Matrix& a, const Matrix& b) { return a.cost > b.cost; });
    std::vector<double> now(total.size());
    for (const Matrix& matrix : group) {
      std::size_t best = 0;
      for (std::size_t r = 1; r < total.size(); ++r)
        if (std::tie(now[r], total[r]) < std::tie(now[best], total[best])) best = r;
      now[best] += matrix.cost;
      total[best] += matrix.cost;
      owners[matrix.unit][matrix.position] = static_cast<int>(best);
    }
    group.clear();
    units = 0;
  };
  for (std::size_t u = 0; u < layout.units().size(); ++u) {
    const Unit& unit = layout.units()[u];
    const WholeMatrices& whole = unit.rule->whole;
    if (!unit.trainable || !whole.work) continue;
    owners[u].resize(unit.parameters.size());
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const Shape& shape = layout.shape(unit.parameters[i]);
      group.push_back({whole.cost(numel(shape) / shape.back(), shape.back()), u, i});
    }
    if (++units == at_once) deal_out();
  }
  deal_out();
  return owners;
}

}  // namespace fsdp
