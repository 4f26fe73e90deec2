// The plan of a recorded layer or loss for one size of batch: the order of operations, the memory of each value and gradient,
// and the steps that run. Nothing is decided in a pass. Internal.
//
// Groups. Operations that are computed row by row, on matrices with the same number of rows, form a run. A run goes through a
// list of steps for one tile of rows after another (kernels/tape.hpp), forward and backward. An operation on whole matrices,
// such as a product, is a group of its own. A value is *whole*, that is, has memory for all rows, if another group reads it.
// All other values are only in a tile, and backward computes them again. *Kept* values are those whole ones that backward
// reads. Since a tile goes through all steps of its run, lifetimes of whole values and gradients count groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layers/tape_list.hpp"

namespace fsdp {

/// Where a whole value or gradient is; `offset` is in bytes. `wide`: fp32, in every type of pass.
struct TapePlace {
  std::uint32_t space = kernels::TapeOperand::none;
  std::size_t offset = 0;
  bool wide = false;

  explicit operator bool() const { return space != kernels::TapeOperand::none; }
};

/// Sums over the rows of a run: n floats from `offset` on of each part's sums. Their total is value `node`, or is added to its
/// gradient, or is the first contribution to it (`sets`).
struct TapeSum {
  int node;
  std::size_t offset, n;
  bool sets;
  std::uint64_t serves;
};

/// The passes of a run.
struct TapeSteps {
  std::vector<kernels::TapeStep> steps;
  std::vector<TapeSum> sums;
  std::size_t widest = 0, tile_floats = 0, sum_floats = 0;
};

struct TapeGroup {
  bool is_run = false;
  std::size_t rows = 0;
  std::vector<int> nodes = {};
  TapeSteps forward = {}, backward = {};
  // For a whole operation: the gradients of a and b get their first contribution, and are set to 0 before, because it covers
  // only some columns.
  bool sets[2] = {}, clears[2] = {};
};

class TapePlan {
 public:
  /// `tiled`: false keeps every value in memory of its own, for tests.
  TapePlan(TapeList list, const BatchSizes& batch, bool is_loss, bool tiled = true);

  const TapeList& list() const { return list_; }
  const std::vector<TapeGroup>& groups() const { return groups_; }
  const TapePlace& value(int node) const { return values_[static_cast<std::size_t>(node)]; }
  const TapePlace& gradient(int node) const { return gradients_[static_cast<std::size_t>(node)]; }
  /// Bytes of kept values in the type of the pass and in fp32; of other memory; and where tiles, sums and, on a GPU, the steps
  /// of a run begin in it.
  std::size_t saved_bytes = 0, stats_bytes = 0, scratch_bytes = 0, tiles_at = 0, sums_at = 0, steps_at = 0;
  static constexpr std::size_t alignment = 64;  // of the other memory on a GPU; a pass may have to skip bytes for it
  bool writes_dx = false;                       // the result depends on x
  /// The same as numbers per row. A loss has all of it as scratch.
  MemorySizes sizes;

 private:
  class Emitter;
  friend class Emitter;

  void find_gradients();
  void find_groups();
  void find_whole();
  void place_values();
  void place_gradients();
  void emit();
  bool is_broadcast(int node, const TapeGroup& group) const { return list_[node].rows == 1 && group.rows != 1; }
  std::size_t bytes_of(int node) const;
  template <class Visit>
  void visit_users(Visit&& visit) const;

  TapeList list_;
  BatchSizes batch_;
  bool is_loss_, tiled_;
  std::vector<TapeGroup> groups_;
  std::vector<int> group_of_;                              // by node; -1: sources, views and what nothing reads
  std::vector<bool> whole_, kept_, read_by_whole_, wide_;  // by node
  std::vector<TapePlace> values_, gradients_;
  // By node: the group in which its gradient replaces another one, or a value, in place; and the only group whose backward
  // reads the kept value. -1: none.
  std::vector<int> shared_, reader_;
  std::vector<bool> has_gradient_;
};

/// For tests: recorded(), or, if not `tiled`, with whole values that are all kept, each in memory of its own.
LayerPtr recorded(std::size_t inputs, std::function<Value(Tape&, Value x)> function, bool tiled);

}  // namespace fsdp
