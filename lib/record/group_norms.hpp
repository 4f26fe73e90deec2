// The norm of the gradient of each group of parameters. A group holds the parameters that the optimizer treats alike: the same
// update rule, weight decay and learning rate. The sums are exact, as for the global norm, so the bits of a norm do not depend
// on the number of ranks or the sharding strategy. The squared norms of all groups add up to the squared global norm.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/exact_sum.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

class GroupNorms {
 public:
  /// `sharded` must outlive this object; `options` are the options of the model's optimizer.
  GroupNorms(ShardedModel& sharded, const OptimizerOptions& options);

  /// Returns each group's name ("decay", "no decay", "decay, lr x 0.1") and the norm of its gradient in the last update,
  /// before clipping. Valid until the next call. Collective over the shard axis; every rank gets the same result.
  const std::vector<std::pair<std::string, double>>& measure(double loss_scale);

 private:
  ShardedModel& sharded_;
  std::vector<std::size_t> group_of_;  // by parameter: index of its group
  std::vector<std::pair<std::string, double>> norms_;
  const std::shared_ptr<Stream> stream_ = make_host_stream();
  std::vector<kernels::ExactSum> squares_;  // by group: the sum of squares
};

}  // namespace fsdp
