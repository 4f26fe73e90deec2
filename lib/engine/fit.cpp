#include "engine/fit.hpp"

#include <algorithm>

#include "base/format.hpp"

namespace fsdp {

void require_same_optimizer(const OptimizerOptions& optimizer, const CheckpointReader& checkpoint, const std::string& remedy) {
  const std::string_view wanted = optimizer.kind->name, found = checkpoint.header().optimizer;
  const auto refuse = [&](const std::string& problem) {
    throw UserError(
        format("{} holds {}; give the optimizer that it was written with, or {}", checkpoint.description(), problem, remedy));
  };
  if (algorithm_of(wanted) != algorithm_of(found))
    refuse(format("the state of `optimizer` {} (this run has `optimizer` {})", found, wanted));
  const auto& there = checkpoint.states();
  // Only trained parameters have optimizer state in the checkpoint, even if this run trains others.
  std::vector<Parameter> trained = checkpoint.model().parameters();
  std::erase_if(trained, [&](const Parameter& parameter) { return !checkpoint.was_trained(parameter.name); });
  for (const std::string& state : states_of(optimizer, trained))
    if (std::find(there.begin(), there.end(), state) == there.end())
      refuse(format("no {} of `optimizer` {} (it was written with other options, and has only {})", state, wanted,
                    fmt::join(there, ", ")));
}

std::string require_average(const UpdateOptions& options, const CheckpointReader& checkpoint) {
  const std::uint64_t update = checkpoint.header().progress.update;
  const bool there = has_average(checkpoint), wanted = options.ema_decay > 0;
  if (wanted && !there && update > options.ema_start_update)
    throw UserError(
        format("{} has no average of the weights for `decay of the average` (its run kept none); leave out "
               "`decay of the average`, or give `start of the average` {} to begin an average with the checkpoint's weights",
               checkpoint.description(), update));
  return there && !wanted ? "the checkpoint's average of the weights is left out (there is no `decay of the average`)" : "";
}

std::string describe_new_states(const Layout& layout, const std::vector<Parameter>& parameters,
                                const CheckpointReader& checkpoint) {
  std::vector<std::string> names;
  for (const Unit& unit : layout.units())
    for (const std::size_t p : unit.parameters)
      if (const auto& kept = unit.rule->states; unit.trainable && !kept.empty())
        if (!checkpoint.has_state(std::string(kept.front().name), parameters[p].name)) names.push_back(parameters[p].name);
  if (names.empty()) return "";
  return format("{}{} not trained when {} was saved; the optimizer state starts at zero", names.front(),
                names.size() == 1 ? " was" : format(" and {} other parameters were", names.size() - 1),
                checkpoint.description());
}

}  // namespace fsdp
