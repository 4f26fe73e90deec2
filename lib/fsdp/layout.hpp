// Where every element of every parameter lies: a pure function of (model, wrap policy, number of shards). Every rank, a rank of
// another world size, and a tool on a login node compute the same layout without asking anyone.
//
// A unit's parameters lie one after another in one flat buffer (FlatParameter; Zhao et al. 2023, section 4.2), each starting at
// a multiple of `alignment` elements; the buffer is padded so that it cuts into equal shards that are aligned too. Shard r of a
// unit is elements [r, r+1) * shard_numel.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "nn/transformer.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

/// Elements; 64 bytes of fp32, so that every parameter and every shard starts on a cache line.
inline constexpr std::size_t flat_alignment = 16;

/// The element types of a unit: what is gathered, what backward writes, what travels in a reduction.
struct UnitTypes {
  DType parameter = DType::f32, gradient = DType::f32, reduce = DType::f32;
};

/// A set of parameters that is gathered, released and reduced together.
struct Unit {
  std::string name;                     // "root", "block 0"
  std::vector<std::size_t> parameters;  // indices into Transformer::parameters(), in flat order
  std::vector<std::size_t> offsets;     // of each, in elements from the start of the flat buffer
  std::size_t numel = 0;                // elements of parameters, without padding
  std::size_t padded_numel = 0;         // of the flat buffer
  std::vector<Range> gaps;              // its elements that belong to no parameter
  UnitTypes types;
};

/// A part of a parameter inside a shard.
struct Slice {
  std::size_t parameter;     // index
  Range range;               // elements of the parameter, flat in its stored shape
  std::size_t shard_offset;  // where they lie, in elements from the start of the rank's part of the unit
};

/// How blocks are grouped into units.
struct WrapPolicy {
  std::size_t blocks_per_unit = 1;  // transformer policy: embedding, head and final norm in the root unit
};

class Layout {
 public:
  /// `shards` is the size of the shard axis.
  Layout(const std::vector<Parameter>& parameters, const WrapPolicy& policy, int shards, UnitTypes types = {});

  int shards() const { return shards_; }
  /// Unit 0 is the root; the others follow in order of their blocks.
  const std::vector<Unit>& units() const { return units_; }
  std::size_t unit_of_block(std::size_t block) const { return unit_of_block_.at(block); }
  std::size_t shard_numel(std::size_t unit) const { return units_.at(unit).padded_numel / static_cast<std::size_t>(shards_); }
  /// All units' shards one after another: the length of a rank's parameter shard, gradient shard and each optimizer state.
  std::size_t total_shard_numel() const { return shard_offsets_.back(); }
  /// Where the shard of `unit` starts in that sequence.
  std::size_t shard_offset(std::size_t unit) const { return shard_offsets_.at(unit); }
  /// The parts of parameters that shard `shard` of `unit` holds, in flat order. Empty slices are left out.
  std::vector<Slice> slices(std::size_t unit, int shard) const;

 private:
  std::vector<std::size_t> numels_;  // of each parameter
  int shards_;
  std::vector<Unit> units_;
  std::vector<std::size_t> unit_of_block_;
  std::vector<std::size_t> shard_offsets_;  // units() + 1 entries
};

}  // namespace fsdp
