// What a rank has of one kind of state: of the parameters, or of what an optimizer keeps beside them. What saves and loads
// works on this, whatever optimizer it is.
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

namespace fsdp {

/// The name of the state that is the parameters themselves. The others are named by the optimizer.
inline constexpr const char* parameters_state = "parameters";

/// Memory of a state: of each unit Layout::state_numel() elements of `type`, or nothing where it has no such state. Whoever is
/// no stream's work reads and writes it through the views.
/// Extent::element: this rank's part of the unit, as Layout::slices() tells; row and column: of all matrices of the unit in
/// order, the same on every rank.
struct ShardState {
  std::string name;  // parameters_state, or "exp_avg"
  std::vector<MemoryView> units;
  Extent extent = Extent::element;
  DType type = DType::f32;

  ShardState(std::string state, std::vector<MemoryView> memory, Extent how_much, DType element_type)
      : name(std::move(state)), units(std::move(memory)), extent(how_much), type(element_type) {}
  /// fp32 on the host, a rank's part of each unit.
  ShardState(std::string state, const std::vector<std::span<float>>& memory) : name(std::move(state)) {
    for (const std::span<float> unit : memory) units.emplace_back(std::as_writable_bytes(unit));
  }

  std::size_t numel(std::size_t unit) const { return units[unit].bytes() / size_of(type); }
  /// Elements [begin, begin + out.size()) of a unit in fp32, which is exact.
  void read(std::size_t unit, std::size_t begin, std::span<float> out) const;
  /// The other way: to the nearest number of `type`, which is exact for what read() gave.
  void write(std::size_t unit, std::size_t begin, std::span<const float> values) const;
  /// f(values) with elements [begin, begin + count) of a unit in fp32, in pieces where they have to be copied or widened.
  template <class F>
  void visit(std::size_t unit, std::size_t begin, std::size_t count, F&& f) const {
    if (type == DType::f32)
      return units[unit].visit<float>(begin * sizeof(float), count,
                                      [&](const float* values, std::size_t n) { f(std::span(values, n)); });
    std::array<float, 4096> wide;  // on the stack: updates do not allocate
    for (std::size_t at = 0; at < count; at += wide.size()) {
      const std::span piece(wide.data(), std::min(wide.size(), count - at));
      read(unit, begin + at, piece);
      f(std::span<const float>(piece));
    }
  }
  /// All of a unit in fp32.
  std::vector<float> values(std::size_t unit) const;
};

}  // namespace fsdp
