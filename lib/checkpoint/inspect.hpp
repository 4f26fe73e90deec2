// What is in a source of tensors, and how two of them differ. Tensors stream through buffers of fixed size.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"

namespace fsdp {

struct TensorSummary {
  double mean = 0, norm = 0, smallest = 0, largest = 0;  // norm: the root of the sum of squares; of finite elements
  std::size_t non_finite = 0;
};
TensorSummary summarize(const TensorSource& source, const std::string& name);
/// The same of a state of the optimizer: "exp_avg". Throws UserError if there is none of this parameter.
TensorSummary summarize_state(const TensorSource& source, const std::string& state, const std::string& name);

struct TensorDifference {
  std::string name;
  std::string why = {};              // not comparable: "only in ...", another shape; else empty
  std::size_t elements = 0;          // that differ
  double largest = 0, relative = 0;  // |a - b|; norm of a - b by the norm of a
  bool same() const { return why.empty() && elements == 0; }
};
/// Of every tensor that one of them has, in order of `a`. Any two sources: a checkpoint of another number of ranks, a
/// consolidated file, a Hugging Face folder.
std::vector<TensorDifference> compare_tensors(const TensorSource& a, const TensorSource& b,
                                              const ByteProgress& progress = nullptr);

}  // namespace fsdp
