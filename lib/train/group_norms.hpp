// The gradient's norm by group of parameters: those that the optimizer treats alike (rule, weight decay, learning rate). Exact
// sums, as for the norm of the whole, so that neither ranks nor strategy change a bit; the squares of all groups add up to it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "fsdp/sharded_model.hpp"
#include "kernels/exact_sum.hpp"

namespace fsdp {

class GroupNorms {
 public:
  /// `sharded` must outlive it, and its optimizer is `options`.
  GroupNorms(ShardedModel& sharded, const OptimizerOptions& options);

  /// The name of each group, such as "decay", "no decay" or "decay, lr x 0.1", and the norm of its gradient in the last update,
  /// before clipping. Collective over the shard axis; the same on every rank. Valid until the next call.
  const std::vector<std::pair<std::string, double>>& measure(double loss_scale);

 private:
  ShardedModel& sharded_;
  std::vector<std::size_t> group_of_;  // by parameter
  std::vector<std::pair<std::string, double>> norms_;
  const std::shared_ptr<Stream> stream_ = make_host_stream();
  std::vector<kernels::ExactSum> squares_;  // by group
};

}  // namespace fsdp
