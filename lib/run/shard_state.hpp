// A rank's shard of one kind of state: the parameters, or a state of the optimizer. Saving and loading use only this type, for
// every optimizer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "device/memory_view.hpp"
#include "optim/optimizer.hpp"
#include "plan/layout.hpp"

namespace fsdp {

/// The memory of one state. Unit u has Layout::state_numel(u) elements of type types[u], or none if it lacks this state. Code
/// that does not run on a stream reads and writes the elements through the views in `units`. Extent::element: this rank's part
/// of the unit, as in Layout::slices(). Extent::row and column: one number per row or column of all matrices of the unit, in
/// order, the same on every rank.
struct ShardState {
  std::string name;  // parameters_state, or "exp_avg"
  std::vector<MemoryView> units;
  std::vector<DType> types;  // by unit
  Extent extent = Extent::element;

  ShardState(std::string state, std::vector<MemoryView> memory, Extent how_much, DType element_type)
      : name(std::move(state)), units(std::move(memory)), types(units.size(), element_type), extent(how_much) {}
  /// A state in fp32 on the host: this rank's part of each unit.
  ShardState(std::string state, const std::vector<std::span<float>>& memory) : name(std::move(state)) {
    for (const std::span<float> unit : memory) units.emplace_back(std::as_writable_bytes(unit));
    types.assign(units.size(), DType::f32);
  }

  std::size_t numel(std::size_t unit) const { return units[unit].bytes() / size_of(types[unit]); }
  /// Reads elements [begin, begin + out.size()) of a unit and converts them to fp32. This is exact.
  void read(std::size_t unit, std::size_t begin, std::span<float> out) const;
  /// Writes `values`, rounded to the nearest number of the unit's type. This is exact for values from read().
  void write(std::size_t unit, std::size_t begin, std::span<const float> values) const;
  /// Calls f(values) with elements [begin, begin + count) of a unit in fp32, in several calls if elements must be copied or
  /// converted.
  template <class F>
  void visit(std::size_t unit, std::size_t begin, std::size_t count, F&& f) const {
    if (types[unit] == DType::f32)
      return units[unit].visit<float>(begin * sizeof(float), count,
                                      [&](const float* values, std::size_t n) { f(std::span(values, n)); });
    std::array<float, 4096> wide;  // on the stack: updates do not allocate
    for (std::size_t at = 0; at < count; at += wide.size()) {
      const std::span piece(wide.data(), std::min(wide.size(), count - at));
      read(unit, begin + at, piece);
      f(std::span<const float>(piece));
    }
  }
  /// All elements of a unit as fp32.
  std::vector<float> values(std::size_t unit) const;
};

}  // namespace fsdp
