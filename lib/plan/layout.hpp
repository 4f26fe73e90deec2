// A layout defines where every element of every parameter is stored. It is a pure function of the units and the size of the
// shard axis, so every rank knows every other rank's shard without communication. A unit's parameters are stored in one flat
// padded buffer (Zhao et al. 2023, "PyTorch FSDP", section 4.2, FlatParameter). With n = shard_numel(), shard r of a sharded
// unit begins at element r * n and has n elements.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "plan/wrap.hpp"
#include "tensor/shape.hpp"

namespace fsdp {

/// The alignment of parameters and shards in a flat buffer, in elements. 16 fp32 elements are a cache line of 64 bytes.
inline constexpr std::size_t flat_alignment = 16;

/// The name of the state that consists of the parameters. The optimizer names the other states.
inline constexpr const char* parameters_state = "parameters";
/// The name of the moving average of the parameters. Trained parameters have it if the run keeps an average.
inline constexpr const char* average_state = "ema";

/// The element types of a unit. State that is stored in bf16 is converted to fp32 for all arithmetic, and results are rounded
/// to bf16 stochastically: see operations/rounding.cpp.
struct UnitTypes {
  DType parameter = DType::f32;  // of the parameters in gathers and computation
  DType reduce = DType::f32;     // each rank's gradient is rounded to this type before a reduction
  DType master = DType::f32;     // of the parameters that the optimizer updates: fp32, or bf16 (only if `parameter` is, too)
  DType gradient = DType::f32;   // of the gradient sums that a rank stores: fp32 or bf16
  bool operator==(const UnitTypes&) const = default;
};

struct Unit : UnitSpec {
  std::vector<std::size_t> offsets;  // where each parameter starts in the flat buffer, in elements
  std::size_t numel = 0;             // the number of elements of all parameters, without padding
  std::size_t padded_numel = 0;      // of the flat buffer
  std::vector<Range> gaps;           // ranges of the flat buffer that belong to no parameter
  int shards = 1;                    // the size of the shard axis, or 1 if the unit is not sharded
  UnitTypes types;
};

/// The part of a parameter that is in a shard.
struct Slice {
  std::size_t parameter;     // the parameter's index in the model
  Range range;               // the slice's range of elements in the flattened parameter
  std::size_t shard_offset;  // position in elements from the start of the rank's part of the unit
};

class Layout {
 public:
  /// `shards` is the size of the shard axis. Each parameter must be in exactly one unit. The masters of a unit that is not
  /// trained are its parameters, whatever `types` says. `stage_names`: see Model.
  Layout(const std::vector<Parameter>& parameters, const std::vector<UnitSpec>& units, int shards, UnitTypes types = {},
         std::vector<std::string> stage_names = {});

  int shards() const { return shards_; }
  const std::vector<Unit>& units() const { return units_; }
  std::size_t shard_numel(std::size_t unit) const {
    return units_.at(unit).padded_numel / static_cast<std::size_t>(units_.at(unit).shards);
  }
  /// The parts of parameters in shard `shard` of `unit`, in flat order. Empty slices are omitted.
  std::vector<Slice> slices(std::size_t unit, int shard) const;
  /// The number of elements of an optimizer state of `unit` on each rank. `extent` says whether the state has a number for each
  /// element of the shard, or for each row or column of the unit's matrices.
  std::size_t state_numel(std::size_t unit, Extent extent) const;
  /// Some optimizers compute sums over whole tensors, in one or two rounds. A sum is stored as integer words. Returns the range
  /// of this unit's words among the words of all trained units in a round.
  Range statistics(std::size_t unit, int round) const;
  /// The number of words of all trained units in a round.
  std::size_t statistics_words(int round) const;
  /// By parameter: true if it is trained.
  std::vector<bool> trained() const;
  /// By parameter: the index of its unit.
  std::vector<std::size_t> units_of_parameters() const;
  const Shape& shape(std::size_t parameter) const { return shapes_.at(parameter); }
  const std::vector<std::string>& stage_names() const { return stage_names_; }
  /// The types of the model. Units of quantized matrices, and of state of layers, have others.
  const UnitTypes& types() const { return types_; }

 private:
  std::vector<Shape> shapes_;  // of each parameter
  std::vector<std::size_t> numels_;
  int shards_;
  UnitTypes types_;
  std::vector<Unit> units_;
  std::vector<std::string> stage_names_;
};

/// The input of an optimizer: all parameters of a unit, and this shard's slices of them.
struct UnitParts {
  std::vector<UnitTensor> tensors;
  std::vector<OptimizerSlice> slices;
};
/// `settings` has an entry for each parameter of the model.
UnitParts parts_of_unit(const Layout& layout, std::size_t unit, int shard, const std::vector<ParameterSettings>& settings);

/// Some optimizers (Muon) work on whole matrices. Returns for each unit and each of its parameters the rank (of `ranks` ranks)
/// that works on the parameter. The list of a unit whose rule needs no whole matrices is empty. Groups of `at_once` consecutive
/// units are worked on together. Within a group, matrices are assigned in order of decreasing cost, each to the rank with the
/// least work in this group and, among equals, with the least work in all groups so far.
std::vector<std::vector<int>> matrix_owners(const Layout& layout, int ranks, std::size_t at_once);

}  // namespace fsdp
