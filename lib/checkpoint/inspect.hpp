// What is in a source of tensors, and how two of them differ. Tensors stream through buffers of fixed size.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace fsdp {

struct TensorSummary {
  double mean = 0, norm = 0, smallest = 0, largest = 0;  // norm: the root of the sum of squares; of finite elements
  std::size_t non_finite = 0;
  /// Whether a norm that was stored is this one.
  bool has_norm(double stored) const { return non_finite > 0 ? std::isnan(stored) : norm == stored; }
};
/// Reads a parameter, or one of the optimizer's states of it ("exp_avg"), and sums it up. Throws UserError if the parameter has
/// no such state.
TensorSummary summarize(const TensorSource& source, const std::string& name, const std::string& state = parameters_state);

/// Compares the norms of all tensors of `states` with those of when they were saved. Throws RunError that names the first which
/// is another. Returns how many there were to compare: none in a checkpoint from before they were stored.
std::size_t verify_norms(const CheckpointReader& reader, const std::vector<std::string>& states,
                         const ByteProgress& progress = nullptr);

/// Compares all tensors of two sources bit by bit, in constant memory, parameters of `expected` rounded to `type`. Throws
/// RunError naming the first that differs.
void compare_sources(const TensorSource& expected, const TensorSource& found, DType type = DType::f32,
                     const ByteProgress& progress = nullptr, const std::vector<std::string>& states = {parameters_state});

struct TensorDifference {
  std::string name;
  std::string why = {};              // not comparable: "only in ...", another shape; else empty
  std::size_t elements = 0;          // that differ
  double largest = 0, relative = 0;  // |a - b|; norm of a - b by the norm of a
  bool same() const { return why.empty() && elements == 0; }
};
/// The difference of every tensor that at least one of the two has, in the order of `a`. The sources may be of different
/// kinds: a checkpoint of another number of ranks, a consolidated file, a Hugging Face folder.
std::vector<TensorDifference> compare_tensors(const TensorSource& a, const TensorSource& b,
                                              const ByteProgress& progress = nullptr);

}  // namespace fsdp
