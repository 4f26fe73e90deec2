// Statistics of the tensors of a source, and comparisons of two sources. Tensors are read through buffers of fixed size.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace fsdp {

struct TensorSummary {
  double mean = 0, norm = 0, smallest = 0, largest = 0;  // of the finite elements; `norm` is the L2 norm
  std::size_t non_finite = 0;
  /// Returns true if `stored`, the norm saved with the tensor, is the computed one. NaN is saved if elements are not finite.
  bool has_norm(double stored) const { return non_finite > 0 ? std::isnan(stored) : norm == stored; }
};
/// Reads a parameter, or one of its optimizer states ("exp_avg"), and computes its statistics. Throws UserError if the
/// parameter has no such state.
TensorSummary summarize(const TensorSource& source, const std::string& name, const std::string& state = parameters_state);

/// Compares the norms of all tensors of `states` with the norms in the checkpoint. Throws RunError, which names the first
/// tensor whose norm differs. Returns the number of norms compared: zero if the checkpoint has none.
std::size_t verify_norms(const CheckpointReader& reader, const std::vector<std::string>& states,
                         const ByteProgress& progress = nullptr);

/// Compares all tensors of two sources bit by bit, in constant memory. Parameters of `expected` are first rounded to `type`.
/// Throws RunError, which names the first tensor that differs.
void compare_sources(const TensorSource& expected, const TensorSource& found, DType type = DType::f32,
                     const ByteProgress& progress = nullptr, const std::vector<std::string>& states = {parameters_state});

struct TensorDifference {
  std::string name;
  std::string why = {};              // why the tensors cannot be compared: "only in ...", or both shapes; else empty
  std::size_t elements = 0;          // the number of elements that differ
  double largest = 0, relative = 0;  // max |a - b|, and ||a - b|| / ||a|| (L2 norms)
  bool same() const { return why.empty() && elements == 0; }
};
/// Returns the difference of every tensor that at least one source has, in the order of `a`. The sources may be of different
/// kinds: a checkpoint of any number of ranks, a consolidated file, a Hugging Face folder.
std::vector<TensorDifference> compare_tensors(const TensorSource& a, const TensorSource& b,
                                              const ByteProgress& progress = nullptr);

}  // namespace fsdp
