// Which files a rank reads, and which elements of them: a function of the layout under which a checkpoint was written and of
// the one under which it is read. Nothing is opened for it, and nobody is asked.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "fsdp/layout.hpp"
#include "nn/parameters.hpp"

namespace fsdp {

/// Consecutive elements of a parameter, or of a state of it by row or by column, and the rank whose file has them.
struct StoredPart {
  Range range;
  int rank;
};

/// Where all elements of all parameters of a checkpoint lie.
class StoredParts {
 public:
  /// Written by `world_size` ranks under `layout`.
  StoredParts(const std::vector<Parameter>& parameters, const Layout& layout, int world_size);

  /// All parts of a parameter of the model, in order; of a state by row or by column, if it has one.
  std::span<const StoredPart> of(const std::string& name, Extent extent = Extent::element) const;
  /// The parts that have some of `range`.
  std::span<const StoredPart> of(const std::string& name, Range range, Extent extent = Extent::element) const;

 private:
  std::map<std::string, std::array<std::vector<StoredPart>, 3>> parts_;  // by extent
};

/// One range of one file.
struct PlannedRead {
  int rank;                     // whose file
  std::size_t unit, parameter;  // indices in the layout that is read into
  Range range;                  // elements of the parameter, or of its state by row or by column
  std::size_t offset;           // where they go in the rank's part of the unit, in elements
};

/// What shard `shard` under `layout` reads of each state of this extent, file by file. The checkpoint has all of `parameters`,
/// in these shapes.
std::vector<PlannedRead> plan_reads(const StoredParts& stored, const std::vector<Parameter>& parameters, const Layout& layout,
                                    int shard, Extent extent = Extent::element);

}  // namespace fsdp
