// Computes which elements a rank reads from which files when it loads a checkpoint. The input is the layout of the checkpoint
// and the layout of the run that loads the checkpoint. This opens no file and needs no communication. An optimizer state has
// one element for each element, row or column of its parameter (Extent).
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "nn/parameters.hpp"
#include "plan/layout.hpp"

namespace fsdp {

/// Consecutive elements of a parameter or of its optimizer state, and the rank whose file has these elements.
struct StoredPart {
  Range range;
  int rank;
};

/// The rank files that hold the elements of all parameters of a checkpoint.
class StoredParts {
 public:
  /// For a checkpoint written by `world_size` ranks under `layout`.
  StoredParts(const std::vector<Parameter>& parameters, const Layout& layout, int world_size);

  /// All parts of a parameter, or of its states with this extent, ordered by range.
  std::span<const StoredPart> of(const std::string& name, Extent extent = Extent::element) const;
  /// Only the parts that overlap `range`.
  std::span<const StoredPart> of(const std::string& name, Range range, Extent extent = Extent::element) const;

 private:
  std::map<std::string, std::array<std::vector<StoredPart>, 3>> parts_;  // by name and extent
};

/// A read of consecutive elements from one file.
struct PlannedRead {
  int rank;                     // the rank whose file is read
  std::size_t unit, parameter;  // indices in the layout into which the checkpoint is loaded
  Range range;                  // elements of the parameter or of its optimizer state
  std::size_t offset;           // destination of the first element: an index in the reading rank's part of the unit
};

/// Returns the reads that fill shard `shard` of `layout` with a state of this extent, ordered by file. The checkpoint must have
/// all of `parameters`, in these shapes.
std::vector<PlannedRead> plan_reads(const StoredParts& stored, const std::vector<Parameter>& parameters, const Layout& layout,
                                    int shard, Extent extent = Extent::element);

}  // namespace fsdp
