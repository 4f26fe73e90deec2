#include "record/group_norms.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/format.hpp"

namespace fsdp {

std::vector<std::string> groups_of_optimizer(const ShardedModel& sharded, const OptimizerOptions& options) {
  const std::vector<Parameter>& parameters = sharded.model().parameters();
  const std::vector<ParameterSettings> settings = settings_of(options, parameters);
  std::vector<std::string> groups(parameters.size());
  std::set<const Rule*> rules;
  for (const Unit& unit : sharded.layout().units())
    if (unit.trainable) rules.insert(unit.rule);
  for (const Unit& unit : sharded.layout().units())
    for (const std::size_t p : unit.parameters) {
      if (!unit.trainable) continue;
      const ParameterSettings& of = settings[p];
      groups[p] = (rules.size() > 1 ? std::string(unit.rule->name) + ", " : "") + (of.weight_decay > 0 ? "decay" : "no decay") +
                  (of.learning_rate_scale != 1 ? format(", lr x {}", of.learning_rate_scale) : "");
    }
  return groups;
}

GroupNorms::GroupNorms(ShardedModel& sharded, const std::vector<std::string>& groups)
    : sharded_(sharded), group_of_(groups.size()) {
  for (const Unit& unit : sharded.layout().units())
    for (const std::size_t p : unit.parameters) {
      if (!unit.trainable || groups[p].empty()) continue;
      const auto found =
          std::find_if(norms_.begin(), norms_.end(), [&](const auto& group) { return group.first == groups[p]; });
      group_of_[p] = static_cast<std::size_t>(found - norms_.begin());
      if (found == norms_.end()) norms_.emplace_back(groups[p], 0);
    }
  squares_.resize(norms_.size());
}

const std::vector<std::pair<std::string, double>>& GroupNorms::measure(double loss_scale) {
  std::fill(squares_.begin(), squares_.end(), kernels::ExactSum{});
  const ShardState gradients = sharded_.executor().gradients();
  for (std::size_t u = 0; u < gradients.units.size(); ++u) {
    const Unit& unit = sharded_.layout().units()[u];
    if (gradients.units[u].empty() || (!unit.sharded && sharded_.shard() != 0)) continue;  // a replicated unit counts once
    for (const Slice& slice : sharded_.layout().slices(u, sharded_.shard()))
      if (group_of_[slice.parameter])
        gradients.visit(u, slice.shard_offset, slice.range.size(), [&](std::span<const float> x) {
          kernels::add_squares(*stream_, squares_[*group_of_[slice.parameter]], x.data(), x.size());
        });
  }
  sharded_.mesh().shard().sum(
      std::span(reinterpret_cast<std::int64_t*>(squares_.data()), squares_.size() * kernels::ExactSum::words));
  for (std::size_t g = 0; g < norms_.size(); ++g) norms_[g].second = std::sqrt(squares_[g].value()) / loss_scale;
  return norms_;
}

}  // namespace fsdp
