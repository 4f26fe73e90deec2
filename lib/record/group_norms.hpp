// The norm of the gradient of each group of parameters. The sums are exact, as for the global norm, so the bits of a norm do
// not depend on the number of ranks or the sharding strategy. If each parameter is in a group, the squared norms of all groups
// add up to the squared global norm.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/exact_sum.hpp"
#include "run/sharded_model.hpp"

namespace fsdp {

/// By parameter, the name of the group of those that the optimizer treats alike: the same update rule, weight decay and
/// learning rate ("decay", "no decay", "decay, lr x 0.1"). Empty for those that are not trained. `options` are those of the
/// optimizer.
std::vector<std::string> groups_of_optimizer(const ShardedModel& sharded, const OptimizerOptions& options);

class GroupNorms {
 public:
  /// `groups` has the group of each parameter. Parameters without a name, and those that are not trained, are in none.
  /// `sharded` must outlive this object.
  GroupNorms(ShardedModel& sharded, const std::vector<std::string>& groups);

  /// Returns each group's name and the norm of its gradient in the last update, before clipping by norm. Valid until the next
  /// call. Collective over the shard axis; every rank gets the same result.
  const std::vector<std::pair<std::string, double>>& measure(double loss_scale);

 private:
  ShardedModel& sharded_;
  std::vector<std::optional<std::size_t>> group_of_;  // by parameter: the index of its group
  std::vector<std::pair<std::string, double>> norms_;
  const std::shared_ptr<Stream> stream_ = make_host_stream();
  std::vector<kernels::ExactSum> squares_;  // by group: the sum of squares
};

}  // namespace fsdp
