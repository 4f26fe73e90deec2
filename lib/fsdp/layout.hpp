// A layout says where every element of every parameter lies. It is a pure function of the units and the size of the shard axis,
// so that every rank knows every other rank's shard without asking. A unit's parameters lie in one flat padded buffer (Zhao et
// al. 2023, "PyTorch FSDP", section 4.2, FlatParameter), of which shard r of a sharded unit is elements [r, r+1) * shard_numel.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "fsdp/wrap.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

/// It is in elements: 64 bytes of fp32, so that every parameter and every shard starts on a cache line.
inline constexpr std::size_t flat_alignment = 16;

/// The element types of a unit. All arithmetic on what is kept in bf16 is fp32, and the results are rounded at random: see
/// OperationKind::round_at_random.
struct UnitTypes {
  DType parameter = DType::f32;  // what is gathered and computed with
  DType reduce = DType::f32;     // what each rank's gradient is rounded to on its way into a reduction
  DType master = DType::f32;     // what the optimizer updates: fp32, or bf16 where that is the parameters' type: they are one
  DType gradient = DType::f32;   // what a rank keeps of sums of gradients: fp32 or bf16
  bool operator==(const UnitTypes&) const = default;
};

struct Unit : UnitSpec {
  std::vector<std::size_t> offsets;  // of each parameter, in elements from the start of the flat buffer
  std::size_t numel = 0;             // elements of parameters, without padding
  std::size_t padded_numel = 0;      // of the flat buffer
  std::vector<Range> gaps;           // its elements that belong to no parameter
  int shards = 1;                    // parts: the shard axis, or 1 if the unit is not sharded
  UnitTypes types;
};

/// A part of a parameter inside a shard.
struct Slice {
  std::size_t parameter;     // index
  Range range;               // elements of the parameter, flat in its stored shape
  std::size_t shard_offset;  // where they lie, in elements from the start of the rank's part of the unit
};

class Layout {
 public:
  /// `shards` is the size of the shard axis. The units cover each parameter once.
  Layout(const std::vector<Parameter>& parameters, const std::vector<UnitSpec>& units, int shards, UnitTypes types = {});

  int shards() const { return shards_; }
  const std::vector<Unit>& units() const { return units_; }
  std::size_t shard_numel(std::size_t unit) const {
    return units_.at(unit).padded_numel / static_cast<std::size_t>(units_.at(unit).shards);
  }
  /// The parts of parameters in the part of `unit` that shard `shard` holds, in flat order. Empty slices are left out.
  std::vector<Slice> slices(std::size_t unit, int shard) const;
  /// Elements of a state of `unit` on each rank: of its part, or one for each row or column of all its matrices.
  std::size_t state_numel(std::size_t unit, Extent extent) const;
  /// The words that the unit's rule counts in a round of sums over whole tensors, as a range of the words of all trained
  /// units.
  Range statistics(std::size_t unit, int round) const;
  /// The number of words of all trained units in a round.
  std::size_t statistics_words(int round) const;
  const Shape& shape(std::size_t parameter) const { return shapes_.at(parameter); }

 private:
  std::vector<Shape> shapes_;  // of each parameter
  std::vector<std::size_t> numels_;
  int shards_;
  std::vector<Unit> units_;
};

/// What an optimizer works on: all parameters of a unit, and this shard's parts of them.
struct UnitParts {
  std::vector<UnitTensor> tensors;
  std::vector<OptimizerSlice> slices;
};
/// `settings`: of each parameter of the model.
UnitParts parts_of_unit(const Layout& layout, std::size_t unit, int shard, const std::vector<ParameterSettings>& settings);

}  // namespace fsdp
